"""Linear layers with bias, activation, scale and residual in one kernel.

    z = x W^T + bias      y = activation(z) * scale + residual

Each program computes one tile of y. Programs that share rows or columns run at about the same time,
so that these stay in the cache. The gradients of x and W are products of the same kind, with
arbitrary strides. If such a product has a long inner axis and few tiles, the axis is split, and a
second pass adds the parts. Products are each other's derivatives, and hence differentiable to any
order. z is stored only if gradients will need it.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.common.activations import (
    activate,
    activate_curvature,
    activate_derivative,
)
from mlff_triton.kernels.common.checks import check_shape, expanded
from mlff_triton.kernels.common.dense import COMPUTE_DTYPES, accumulator, check_dense
from mlff_triton.kernels.common.hardware import exact_precision
from mlff_triton.kernels.common.reference import activations as reference
from mlff_triton.kernels.common.tiles import tile_in_group

PRECISIONS = ("ieee", "tf32x3", "tf32")

_ENOUGH_TILES = 256  # to fill a large GPU
_BLOCK = 1024


@triton.jit
def _linear_fwd_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    scale_ptr,
    residual_ptr,
    y_ptr,
    z_ptr,
    n_rows,
    n_out,
    n_in,
    x_row,
    x_column,
    weight_row,
    weight_column,
    scale_row,
    scale_column,
    residual_row,
    residual_column,
    split_size,
    ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
):
    """Write y [splits, n_rows, n_out], and z [n_rows, n_out] if wanted.

    Reads x [n_rows, n_in], weight [n_out, n_in], bias [n_out], and scale and residual [n_rows,
    n_out], all but the bias with the strides given. Grid: (tiles of y, splits of the inner axis).
    """
    tiles_m, tiles_n = tl.cdiv(n_rows, M), tl.cdiv(n_out, N)
    tile, split = tl.program_id(0), tl.program_id(1)
    tile_m, tile_n = tile_in_group(tile, tiles_m, tiles_n)
    row = tile_m.to(tl.int64) * M + tl.arange(0, M)[:, None]
    column = tile_n.to(tl.int64) * N + tl.arange(0, N)[None, :]
    mask = (row < n_rows) & (column < n_out)

    acc = tl.zeros((M, N), ACCUMULATE)
    last = tl.minimum(n_in, (split + 1) * split_size)
    for start in range(split * split_size, last, K):
        k = (start + tl.arange(0, K)).to(tl.int64)
        x = tl.load(
            x_ptr + row * x_row + k[None, :] * x_column,
            (row < n_rows) & (k < last)[None, :],
            other=0.0,
        )  # [M, K]
        weight = tl.load(
            weight_ptr + k[:, None] * weight_column + column * weight_row,
            (k < last)[:, None] & (column < n_out),
            other=0.0,
        )  # [K, N]
        acc = tl.dot(x, weight, acc, input_precision=PRECISION, out_dtype=ACCUMULATE)

    if bias_ptr is not None:
        acc += tl.load(bias_ptr + column, column < n_out, other=0.0).to(ACCUMULATE)
    offsets = row * n_out + column
    if z_ptr is not None:
        tl.store(z_ptr + offsets, acc.to(z_ptr.dtype.element_ty), mask)
    y = activate(acc, ACTIVATION)
    if scale_ptr is not None:
        scale = scale_ptr + row * scale_row + column * scale_column
        y *= tl.load(scale, mask, other=0.0).to(ACCUMULATE)
    if residual_ptr is not None:
        residual = residual_ptr + row * residual_row + column * residual_column
        y += tl.load(residual, mask, other=0.0).to(ACCUMULATE)
    y_ptr += split.to(tl.int64) * n_rows * n_out
    tl.store(y_ptr + offsets, y.to(y_ptr.dtype.element_ty), mask)


@triton.jit
def _linear_bwd_activation_kernel(
    grad_ptr,
    z_ptr,
    out_ptr,
    n_elements,
    ACTIVATION: tl.constexpr,
    COMPUTE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Multiply gradients by the derivative of the activation at z. Grid: (blocks of elements,)."""
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n_elements
    grad = tl.load(grad_ptr + offsets, mask, other=0.0).to(COMPUTE)
    z = tl.load(z_ptr + offsets, mask, other=0.0).to(COMPUTE)
    out = grad * activate_derivative(z, ACTIVATION)
    tl.store(out_ptr + offsets, out.to(out_ptr.dtype.element_ty), mask)


@triton.jit
def _linear_bwd_bwd_activation_kernel(
    change_ptr,
    grad_ptr,
    z_ptr,
    grad_grad_ptr,
    grad_z_ptr,
    n_elements,
    ACTIVATION: tl.constexpr,
    COMPUTE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write the gradients of grad and z, given the change of grad times activation'(z).

    Grid: (blocks of elements,).
    """
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n_elements
    change = tl.load(change_ptr + offsets, mask, other=0.0).to(COMPUTE)
    grad = tl.load(grad_ptr + offsets, mask, other=0.0).to(COMPUTE)
    z = tl.load(z_ptr + offsets, mask, other=0.0).to(COMPUTE)
    grad_grad = change * activate_derivative(z, ACTIVATION)
    grad_z = change * grad * activate_curvature(z, ACTIVATION)
    tl.store(grad_grad_ptr + offsets, grad_grad.to(grad_grad_ptr.dtype.element_ty), mask)
    tl.store(grad_z_ptr + offsets, grad_z.to(grad_z_ptr.dtype.element_ty), mask)


class _Tile(NamedTuple):
    rows: int
    columns: int
    inner: int
    warps: int


def _tile(x: Tensor, n_out: int, precision: str) -> _Tile:
    """Return a tile: small for few rows, to fill the GPU; large only if matrix units are used."""
    inner = 128 // x.element_size()
    columns = max(16, triton.next_power_of_2(n_out))
    if len(x) <= 32:
        return _Tile(16, min(64, columns), inner, 4)
    slow = x.dtype == torch.float64 or (x.dtype == torch.float32 and precision == "ieee")
    if len(x) <= 1024 or slow:
        return _Tile(64, min(64, columns), inner, 4)
    return _Tile(128, min(128, columns), inner, 8)


def _strides(x: Tensor | None) -> tuple[int, int]:
    return (0, 0) if x is None else (x.stride(0), x.stride(1))


def _launch_linear(
    x: Tensor,
    weight: Tensor,
    epilogue: tuple[Tensor | None, Tensor | None, Tensor | None],
    outputs: tuple[Tensor, Tensor | None],
    activation: str,
    precision: str,
) -> None:
    """Write y [S, M, N], whose S parts add up to the product, and z [M, N] if wanted."""
    bias, scale, residual = epilogue
    (n_rows, n_in), n_out, n_splits = x.shape, len(weight), len(outputs[0])
    tile = _tile(x, n_out, precision)
    tiles = triton.cdiv(n_rows, tile.rows) * triton.cdiv(n_out, tile.columns)
    with torch.cuda.device_of(x):
        _linear_fwd_kernel[(tiles, n_splits)](
            x,
            weight,
            bias,
            scale,
            residual,
            *outputs,
            n_rows,
            n_out,
            n_in,
            *_strides(x),
            *_strides(weight),
            *_strides(scale),
            *_strides(residual),
            triton.cdiv(n_in, n_splits * tile.inner) * tile.inner,
            ACTIVATION=activation,
            PRECISION=precision,
            ACCUMULATE=accumulator(x),
            M=tile.rows,
            N=tile.columns,
            K=tile.inner,
            num_warps=tile.warps,
        )


def _launch_product(a: Tensor, b: Tensor, precision: str) -> Tensor:
    """Compute [M, K] @ [K, N]."""
    out = a.new_empty(len(a), b.shape[1])
    if not out.numel():
        return out
    tile = _tile(a, b.shape[1], precision)
    tiles = triton.cdiv(len(a), tile.rows) * triton.cdiv(b.shape[1], tile.columns)
    n_splits = min(triton.cdiv(_ENOUGH_TILES, tiles), triton.cdiv(a.shape[1], 16 * tile.inner))
    if n_splits < 2:
        _launch_linear(a, b.T, (None, None, None), (out[None], None), "none", precision)
        return out
    parts = out.new_empty(n_splits, *out.shape, dtype=COMPUTE_DTYPES[a.dtype])
    _launch_linear(a, b.T, (None, None, None), (parts, None), "none", precision)
    return parts.sum(0).to(a.dtype)


def _launch_activation_backward(grad: Tensor, z: Tensor, activation: str) -> Tensor:
    out = z.new_empty(z.shape)
    if z.numel():
        with torch.cuda.device_of(z):
            _linear_bwd_activation_kernel[(triton.cdiv(z.numel(), _BLOCK),)](
                grad.contiguous(),
                z,
                out,
                z.numel(),
                ACTIVATION=activation,
                COMPUTE=accumulator(z),
                BLOCK=_BLOCK,
            )
    return out


def _launch_activation_backward_twice(
    change: Tensor, grad: Tensor, z: Tensor, activation: str
) -> tuple[Tensor, Tensor]:
    grad_grad, grad_z = z.new_empty(z.shape), z.new_empty(z.shape)
    if z.numel():
        with torch.cuda.device_of(z):
            _linear_bwd_bwd_activation_kernel[(triton.cdiv(z.numel(), _BLOCK),)](
                change.contiguous(),
                grad.contiguous(),
                z,
                grad_grad,
                grad_z,
                z.numel(),
                ACTIVATION=activation,
                COMPUTE=accumulator(z),
                BLOCK=_BLOCK,
            )
    return grad_grad, grad_z


@torch.library.custom_op("mlff_triton::linear", mutates_args=())
def _linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: Tensor | None,
    residual: Tensor | None,
    activation: str,
    precision: str,
    keep_z: bool,
) -> tuple[Tensor, Tensor]:
    """Return y [M, N] for rows [M, K], and z, which has no rows unless it is kept."""
    y, z = _empty_outputs(x, weight, keep_z)
    if y.numel():
        outputs = y[None], z if keep_z else None
        _launch_linear(x, weight, (bias, scale, residual), outputs, activation, precision)
    return y, z


def _empty_outputs(x: Tensor, weight: Tensor, keep_z: bool) -> tuple[Tensor, Tensor]:
    n_rows, n_out = len(x), len(weight)
    return x.new_empty(n_rows, n_out), x.new_empty(n_rows if keep_z else 0, n_out)


@_linear.register_fake
def _(x: Tensor, weight: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    return _empty_outputs(x, weight, others[-1])


@torch.library.custom_op("mlff_triton::linear_backward_product", mutates_args=())
def _product(a: Tensor, b: Tensor, precision: str) -> Tensor:
    return _launch_product(a, b, precision)


@_product.register_fake
def _(a: Tensor, b: Tensor, precision: str) -> Tensor:
    del precision
    return a.new_empty(len(a), b.shape[1])


@torch.library.custom_op("mlff_triton::linear_backward_activation", mutates_args=())
def _activation_backward(grad: Tensor, z: Tensor, activation: str) -> Tensor:
    return _launch_activation_backward(grad, z, activation)


@_activation_backward.register_fake
def _(grad: Tensor, z: Tensor, activation: str) -> Tensor:
    del grad, activation
    return z.new_empty(z.shape)


@torch.library.custom_op("mlff_triton::linear_backward_activation_twice", mutates_args=())
def _activation_backward_twice(
    change: Tensor, grad: Tensor, z: Tensor, activation: str
) -> tuple[Tensor, Tensor]:
    return _launch_activation_backward_twice(change, grad, z, activation)


@_activation_backward_twice.register_fake
def _(change: Tensor, grad: Tensor, z: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    del change, grad, activation
    return z.new_empty(z.shape), z.new_empty(z.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weight, _, scale, _, ctx.activation, ctx.precision, _ = inputs
    ctx.save_for_backward(x, weight, scale, output[1])
    ctx.set_materialize_grads(False)


def _differentiate(
    ctx: Any, grad: Tensor | None, grad_z: Tensor | None
) -> tuple[Tensor | None, ...]:
    """Return gradients of the inputs from those of y and, in second derivatives, of z."""
    x, weight, scale, z = ctx.saved_tensors
    grad_scale, slope = None, grad
    if grad is not None and scale is not None:
        grad_scale = grad * reference.activate(z, ctx.activation)
        slope = grad * scale
    if slope is not None and ctx.activation != "none":
        slope = _activation_backward(slope, z, ctx.activation)
    total = grad_z if slope is None else slope if grad_z is None else slope + grad_z
    if total is None:
        return (None,) * 8
    grad_x = grad_weight = grad_bias = None
    if ctx.needs_input_grad[0]:
        grad_x = _product(total, weight, ctx.precision)
    if ctx.needs_input_grad[1]:
        grad_weight = _product(total.T, x, ctx.precision)
    if ctx.needs_input_grad[2]:
        grad_bias = total.sum(0)
    grad_residual = grad if ctx.needs_input_grad[4] else None
    return grad_x, grad_weight, grad_bias, grad_scale, grad_residual, None, None, None


def _save_product(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    del output
    a, b, ctx.precision = inputs
    ctx.save_for_backward(a, b)


def _differentiate_product(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    a, b = ctx.saved_tensors
    grad_a = _product(grad, b.T, ctx.precision) if ctx.needs_input_grad[0] else None
    grad_b = _product(a.T, grad, ctx.precision) if ctx.needs_input_grad[1] else None
    return grad_a, grad_b, None


def _save_activation(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    del output
    grad, z, ctx.activation = inputs
    ctx.save_for_backward(grad, z)


def _differentiate_activation(ctx: Any, change: Tensor) -> tuple[Tensor | None, ...]:
    return (*_activation_backward_twice(change, *ctx.saved_tensors, ctx.activation), None)


_linear.register_autograd(_differentiate, setup_context=_save)
_product.register_autograd(_differentiate_product, setup_context=_save_product)
_activation_backward.register_autograd(_differentiate_activation, setup_context=_save_activation)


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    scale: Tensor | None = None,
    residual: Tensor | None = None,
    precision: str | None = None,
) -> Tensor:
    """Apply a linear layer, activation, scale and residual in one kernel; differentiable twice.

    Parameters
    ----------
    x : [..., K]
        Rows; float16, bfloat16, float32 or float64. Half precisions are accumulated in float32, and
        have no second derivatives if there is an activation.
    weight, bias : [N, K], [N]
        As in `torch.nn.Linear`, of the dtype of ``x``; the bias is optional.
    activation : {"silu", "swish", "gelu", "gelu_tanh", "gelu_sigmoid", "relu", "tanh", "sigmoid",
        "ssp", "mish"}
        Activation function; "ssp" is the shifted softplus, "gelu" the exact GELU. None by default.
    scale, residual : broadcastable to [..., N]
        Factor of the activation, and term added to the product; of the dtype of ``x``.
    precision : {"tf32x3", "ieee", "tf32"}
        Precision of float32 products: "tf32x3" is as exact as float32, in three products on TF32
        matrix units; "ieee" is float32 arithmetic; "tf32" is fast, with mantissas of 10 bits. By
        default "tf32x3" on NVIDIA GPUs and "ieee" on others.

    Returns
    -------
    [..., N]
        Result, of the dtype of ``x``.

    Raises
    ------
    InputError
        If shapes, dtypes or devices do not fit together, or a name is unknown.
    BackendError
        If the tensors are not on a GPU.

    Examples
    --------
    >>> x, weight = torch.ones(4, 16, device="cuda"), torch.ones(2, 16, device="cuda")
    >>> linear(x, weight, activation="relu")[0].tolist()
    [16.0, 16.0]
    """
    check_dense(x=x, weight=weight, bias=bias, scale=scale, residual=residual)
    check_shape("weight", weight, ("N", "K"))
    n_out, n_in = weight.shape
    if not x.dim() or x.shape[-1] != n_in:
        raise InputError(f"x has the shape {list(x.shape)} instead of [..., {n_in}]")
    if bias is not None:
        check_shape("bias", bias, (n_out,))
    activation = _one_of("activation", activation or "none", tuple(reference.ACTIVATIONS))
    precision = _one_of("precision", precision or exact_precision(x), PRECISIONS)
    if x.dtype != torch.float32:
        precision = "ieee"

    shape = (*x.shape[:-1], n_out)
    n_rows = math.prod(shape[:-1])
    needs_grad = any(t is not None and t.requires_grad for t in (x, weight, bias, scale, residual))
    has_epilogue = activation != "none" or scale is not None
    y: Tensor = _linear(
        x.reshape(n_rows, n_in),
        weight,
        None if bias is None else bias.contiguous(),
        _rows_like("scale", scale, shape, n_rows),
        _rows_like("residual", residual, shape, n_rows),
        activation,
        precision,
        has_epilogue and needs_grad and torch.is_grad_enabled(),
    )[0]
    return y.view(shape)


def _one_of(name: str, value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise InputError(f"{name}={value!r} is unknown: use one of {', '.join(known)}")
    return value


def _rows_like(name: str, x: Tensor | None, shape: tuple[int, ...], n_rows: int) -> Tensor | None:
    """Expand a tensor to rows [M, N] of y, without a copy if strides allow."""
    if x is None:
        return None
    return expanded(name, x, shape).reshape(n_rows, shape[-1])
