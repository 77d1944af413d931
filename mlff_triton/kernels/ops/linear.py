"""Linear layers with bias, activation, scale and residual in one kernel.

    z = x W^T + bias      y = activation(z) * scale + residual

Each program computes one tile of y. Programs that share rows or columns run at about the same time,
so that these stay in the cache. z is stored only if gradients will need it. Gradients of z come
from `mlff_triton.kernels.ops.activation_slopes`, and gradients of x and W are products of the same
kind, with arbitrary strides. If such a product has a long inner axis and few tiles, the axis is
split, and a second pass adds the parts. Products are each other's derivatives, and hence
differentiable to any order; activations are differentiable twice.

By default, many rows of float32 are multiplied as float16 halves on tensor cores: see
`mlff_triton.kernels.numerics.split`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.common.activations import activate
from mlff_triton.kernels.common.checks import check_device, check_integers, check_shape, expanded
from mlff_triton.kernels.common.dense import COMPUTE_DTYPES, accumulator, check_dense
from mlff_triton.kernels.common.operators import needed_gradients, operator, saved_inputs
from mlff_triton.kernels.common.reference import activations as reference
from mlff_triton.kernels.common.tiles import tile_in_group
from mlff_triton.kernels.numerics.operands import split_columns
from mlff_triton.kernels.numerics.product import exact_precision, load, multiply
from mlff_triton.kernels.ops.activation_slopes import activation_slopes, count_rows
from mlff_triton.kernels.ops.weight_gradient import launch_weight_gradient

PRECISIONS = ("ieee", "tf32x3", "tf32", "halves")

_ENOUGH_TILES = 256  # to fill a large GPU
_MANY_ROWS = 1024


@triton.jit
def _load_scale(
    scale_ptr, row, column, mask, n_rows, scale_row, scale_column, PER_ROW: tl.constexpr
):
    """Load factors [M, N], or [M, 1] with one PER_ROW."""
    if PER_ROW:
        scale = tl.load(scale_ptr + row * scale_row, row < n_rows, other=0.0)
    else:
        scale = tl.load(scale_ptr + row * scale_row + column * scale_column, mask, other=0.0)
    return scale


@triton.jit
def _linear_fwd_kernel(
    x_ptr,
    weight_ptr,
    units_ptr,
    bias_ptr,
    scale_ptr,
    residual_ptr,
    rows_ptr,
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
    PER_ROW: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
):
    """Write y [splits, n_rows, n_out], and z [n_rows, n_out] if wanted.

    Reads x [n_rows, n_in], weight [n_out, n_in], bias [n_out], and scale and residual [n_rows,
    n_out], all but the bias with the strides given; the scale may be PER_ROW. With "halves", the
    weight consists of two halves, one after the other, and has units [n_out]. Only the first
    ``rows`` rows are computed, if these are given, and the others are zero. Grid: (tiles of y,
    splits of the inner axis).
    """
    tiles_m, tiles_n = tl.cdiv(n_rows, M), tl.cdiv(n_out, N)
    tile, split = tl.program_id(0), tl.program_id(1)
    tile_m, tile_n = tile_in_group(tile, tiles_m, tiles_n)
    row = tile_m.to(tl.int64) * M + tl.arange(0, M)[:, None]
    column = tile_n.to(tl.int64) * N + tl.arange(0, N)[None, :]
    mask = (row < n_rows) & (column < n_out)
    live = count_rows(rows_ptr, n_rows)

    acc = tl.zeros((M, N), ACCUMULATE)
    last = tl.minimum(n_in, (split + 1) * split_size)
    last = tl.where(tile_m * M < live, last, 0)
    for start in range(split * split_size, last, K):
        k = (start + tl.arange(0, K)).to(tl.int64)
        x = tl.load(
            x_ptr + row * x_row + k[None, :] * x_column,
            (row < live) & (k < last)[None, :],
            other=0.0,
        )  # [M, K]
        weights = weight_ptr + k[:, None] * weight_column + column * weight_row
        inside = (k < last)[:, None] & (column < n_out)
        weight = load(weights, inside, n_in, n_out, PRECISION)  # [K, N]
        acc = multiply(x, weight, acc, PRECISION)

    if units_ptr is not None:
        acc *= tl.load(units_ptr + column, column < n_out, other=0.0)
    if bias_ptr is not None:
        acc += tl.load(bias_ptr + column, column < n_out, other=0.0).to(ACCUMULATE)
    offsets = row * n_out + column
    acc = tl.where(row < live, acc, 0.0)
    if z_ptr is not None:
        tl.store(z_ptr + offsets, acc.to(z_ptr.dtype.element_ty), mask)
    y = activate(acc, ACTIVATION)
    if scale_ptr is not None:
        y *= _load_scale(scale_ptr, row, column, mask, n_rows, scale_row, scale_column, PER_ROW)
    if residual_ptr is not None:
        residual = residual_ptr + row * residual_row + column * residual_column
        y += tl.load(residual, mask, other=0.0).to(ACCUMULATE)
    y = tl.where(row < live, y, 0.0)
    y_ptr += split.to(tl.int64) * n_rows * n_out
    tl.store(y_ptr + offsets, y.to(y_ptr.dtype.element_ty), mask)


class _Tile(NamedTuple):
    rows: int
    columns: int
    inner: int
    warps: int


def _tile(x: Tensor, n_out: int, precision: str) -> _Tile:
    """Return a tile: small for few rows, to fill the GPU; large only if matrix units are used."""
    inner = 128 // x.element_size()
    columns = max(16, triton.next_power_of_2(n_out))
    if precision == "halves":
        return _Tile(64, min(128, columns), 32, 4)
    if len(x) <= 32:
        return _Tile(16, min(64, columns), inner, 4)
    slow = x.dtype == torch.float64 or (x.dtype == torch.float32 and precision == "ieee")
    if len(x) <= _MANY_ROWS or slow:
        return _Tile(64, min(64, columns), inner, 4)
    return _Tile(128, min(128, columns), inner, 8)


def _strides(x: Tensor | None) -> tuple[int, int]:
    return (0, 0) if x is None else (x.stride(0), x.stride(1))


def _launch_linear(
    x: Tensor,
    weight: Tensor,
    epilogue: tuple[Tensor | None, Tensor | None, Tensor | None],
    rows: Tensor | None,
    outputs: tuple[Tensor, Tensor | None],
    activation: str,
    precision: str,
) -> None:
    """Write y [S, M, N], whose S parts add up to the product, and z [M, N] if wanted."""
    bias, scale, residual = epilogue
    (n_rows, n_in), n_out, n_splits = x.shape, len(weight), len(outputs[0])
    tile = _tile(x, n_out, precision)
    tiles = triton.cdiv(n_rows, tile.rows) * triton.cdiv(n_out, tile.columns)
    units = None
    if precision == "halves":
        halves, units = split_columns(weight.T[None])
        weight = halves[0, 0].T
    with torch.cuda.device_of(x):
        _linear_fwd_kernel[(tiles, n_splits)](
            x,
            weight,
            units,
            bias,
            scale,
            residual,
            rows,
            *outputs,
            n_rows,
            n_out,
            n_in,
            *_strides(x),
            *_strides(weight),
            *_strides(scale),
            *_strides(residual),
            triton.cdiv(n_in, n_splits * tile.inner) * tile.inner,
            PER_ROW=scale is not None and scale.shape[1] == 1,
            ACTIVATION=activation,
            PRECISION=precision,
            ACCUMULATE=accumulator(x),
            M=tile.rows,
            N=tile.columns,
            K=tile.inner,
            num_warps=tile.warps,
        )


def _launch_product(a: Tensor, b: Tensor, precision: str, rows: Tensor | None = None) -> Tensor:
    """Compute [M, K] @ [K, N]."""
    out = a.new_empty(len(a), b.shape[1])
    if not out.numel():
        return out
    tile = _tile(a, b.shape[1], precision)
    tiles = triton.cdiv(len(a), tile.rows) * triton.cdiv(b.shape[1], tile.columns)
    n_splits = min(triton.cdiv(_ENOUGH_TILES, tiles), triton.cdiv(a.shape[1], 16 * tile.inner))
    if n_splits < 2 or precision == "halves":
        _launch_linear(a, b.T, (None, None, None), rows, (out[None], None), "none", precision)
        return out
    parts = out.new_empty(n_splits, *out.shape, dtype=COMPUTE_DTYPES[a.dtype])
    _launch_linear(a, b.T, (None, None, None), rows, (parts, None), "none", precision)
    return parts.sum(0).to(a.dtype)


def _empty_outputs(x: Tensor, weight: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    n_rows, n_out, keep_z = len(x), len(weight), others[-1]
    return x.new_empty(n_rows, n_out), x.new_empty(n_rows if keep_z else 0, n_out)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weight, _, scale, _, rows, ctx.activation, ctx.precision, _ = inputs
    ctx.save_for_backward(x, weight, scale, rows, output[1])
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, grad: Tensor | None, grad_z: Tensor | None) -> tuple[Tensor | None, ...]:
    """Return gradients of the inputs from those of y and, for second derivatives, of z."""
    x, weight, _, rows, _ = ctx.saved_tensors
    needed = needed_gradients(ctx)
    total, grad_scale = _slopes(ctx, grad, grad_z, needed[3])
    if total is None:
        return ()
    grad_x = grad_weight = grad_bias = None
    if needed[0]:
        grad_x = _product(total, weight, rows, ctx.precision)
    if needed[1] or needed[2]:
        grad_weight, grad_bias = _weight_gradient(total, x, rows, ctx.precision)
    if not needed[2]:
        grad_bias = None
    grad_residual = grad if needed[4] else None
    return grad_x, grad_weight, grad_bias, grad_scale, grad_residual


def _slopes(
    ctx: Any, grad: Tensor | None, grad_z: Tensor | None, with_scale: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of z and, if wanted, of the scale."""
    _, _, scale, rows, z = ctx.saved_tensors
    if grad is None or (ctx.activation == "none" and scale is None):
        return grad_z if grad is None else grad if grad_z is None else grad + grad_z, None
    if scale is None or scale.shape[1] == 1:
        per_row = None if scale is None else scale[:, 0]
        total, grad_scale = activation_slopes(
            grad, z, per_row, grad_z, rows, ctx.activation, with_scale
        )
        return total, grad_scale[:, None] if with_scale else None
    total, _ = activation_slopes(grad * scale, z, None, grad_z, rows, ctx.activation, False)
    return total, grad * reference.activate(z, ctx.activation)


@operator("linear", outputs=_empty_outputs, differentiate=_gradients, saves=_save)
def _linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: Tensor | None,
    residual: Tensor | None,
    rows: Tensor | None,
    activation: str,
    precision: str,
    keep_z: bool,
) -> tuple[Tensor, Tensor]:
    """Return y [M, N] for rows [M, K], and z, which has no rows unless it is kept."""
    y, z = _empty_outputs(x, weight, keep_z)
    if y.numel():
        outputs = y[None], z if keep_z else None
        epilogue = bias, scale, residual
        _launch_linear(x, weight, epilogue, rows, outputs, activation, precision)
    return y, z


def _gradients_of_product(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    a, b, rows, precision = saved_inputs(ctx)
    needed = needed_gradients(ctx)
    grad_a = _product(grad, b.T, rows, precision) if needed[0] else None
    grad_b = _weight_gradient(a, grad, rows, precision)[0] if needed[1] else None
    return grad_a, grad_b


@operator(
    "linear_backward_product",
    outputs=lambda a, b, *_: a.new_empty(len(a), b.shape[1]),
    differentiate=_gradients_of_product,
)
def _product(a: Tensor, b: Tensor, rows: Tensor | None, precision: str) -> Tensor:
    return _launch_product(a, b, precision, rows)


def _gradients_of_weight_gradient(
    ctx: Any, grad_weight: Tensor, grad_bias: Tensor
) -> tuple[Tensor | None, ...]:
    t, x, rows, precision = saved_inputs(ctx)
    grad_t = _product(x, grad_weight.T, rows, precision) + grad_bias
    grad_x = _product(t, grad_weight, rows, precision)
    return _first_rows(grad_t, rows), grad_x


@operator(
    "linear_backward_weight",
    outputs=lambda t, x, *_: (t.new_empty(t.shape[1], x.shape[1]), t.new_empty(t.shape[1])),
    differentiate=_gradients_of_weight_gradient,
)
def _weight_gradient(
    t: Tensor, x: Tensor, rows: Tensor | None, precision: str
) -> tuple[Tensor, Tensor]:
    """Return the gradients [N, K] and [N] of weight and bias from those of z, t [M, N]."""
    if precision == "halves":
        weight, bias = launch_weight_gradient(t[None], x[None], rows, with_bias=True)
        return weight[0], bias[0]
    t = _first_rows(t, rows)
    return _launch_product(t.T, x, precision), t.sum(0)


def _first_rows(x: Tensor, rows: Tensor | None) -> Tensor:
    """Set all but the first rows to zero, if their number is given."""
    if rows is None:
        return x
    return x.where((torch.arange(len(x), device=x.device) < rows)[:, None], 0)


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    scale: Tensor | None = None,
    residual: Tensor | None = None,
    precision: str | None = None,
    rows: Tensor | None = None,
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
    precision : {"halves", "tf32x3", "ieee", "tf32"}
        Precision of float32 products: "halves" and "tf32x3" are as exact as float32, in three
        products on matrix units of float16 and TF32; "ieee" is float32 arithmetic; "tf32" is fast,
        with mantissas of 10 bits. By default "ieee" on AMD GPUs and, on others, "halves" for more
        than 1024 rows and "tf32x3" for fewer.

    rows : int64 or int32 [], optional
        Number of rows that are computed, on the device of ``x``; the others are zero, and get no
        gradients. By default all. Not with a residual or with factors per channel.

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
    shape = (*x.shape[:-1], n_out)
    n_rows = math.prod(shape[:-1])
    scale_rows = _rows_like("scale", scale, shape, n_rows, per_row=True)
    if rows is not None:
        _check_rows(rows, x, scale_rows, residual)
    precision = _one_of("precision", precision or _default_precision(x, n_rows), PRECISIONS)
    if x.dtype != torch.float32:
        precision = "ieee"
    needs_grad = any(t is not None and t.requires_grad for t in (x, weight, bias, scale, residual))
    has_epilogue = activation != "none" or scale is not None
    y: Tensor = _linear(
        x.reshape(n_rows, n_in),
        weight,
        None if bias is None else bias.contiguous(),
        scale_rows,
        _rows_like("residual", residual, shape, n_rows),
        rows,
        activation,
        precision,
        has_epilogue and needs_grad and torch.is_grad_enabled(),
    )[0]
    return y.view(shape)


def _check_rows(rows: Tensor, x: Tensor, scale: Tensor | None, residual: Tensor | None) -> None:
    check_shape("rows", rows, ())
    check_device(x, rows)
    check_integers(rows=rows)
    if residual is not None or (scale is not None and scale.shape[1] > 1):
        raise InputError("rows cannot be used with a residual or with factors per channel")


def _default_precision(x: Tensor, n_rows: int) -> str:
    exact = exact_precision(x)
    return "halves" if exact == "tf32x3" and n_rows > _MANY_ROWS else exact


def _one_of(name: str, value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise InputError(f"{name}={value!r} is unknown: use one of {', '.join(known)}")
    return value


def _rows_like(
    name: str, x: Tensor | None, shape: tuple[int, ...], n_rows: int, *, per_row: bool = False
) -> Tensor | None:
    """Expand a tensor to rows [M, N] of y, or [M, 1] if allowed, without a copy if possible."""
    if x is None:
        return None
    columns = 1 if per_row and x.dim() and x.shape[-1] == 1 else shape[-1]
    return expanded(name, x, (*shape[:-1], columns)).reshape(n_rows, columns)
