"""Layer normalization over the last axis, after an optional residual.

    t = x (+ residual)      y = (t - mean(t)) / sqrt(var(t) + eps) * weight + bias

J. L. Ba, J. R. Kiros and G. E. Hinton, "Layer Normalization", https://arxiv.org/abs/1607.06450.
Each program keeps whole rows in registers, several if they are short. For the gradients of weight
and bias, each program sums over its own rows, and a second pass adds these sums. With the
normalized rows n, their scale r = 1 / sqrt(var(t) + eps) and means over channels, the gradients are

    gt = r P(g w)      gw = sum n g      gb = sum g      P(v) = v - mean(v) - mean(v n) n

Second derivatives are gradients of ``<dt, gt> + <dw, gw> + <db, gb>`` for changes dt, dw and db:

    gg = r P(dt) w + dw n + db      gw = sum r P(dt) g
    gt = r P(g dw) - r^2 (mean(dt P(g w)) n + mean(g w n) P(dt) + mean(dt n) P(g w))
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.common.checks import check_shape
from mlff_triton.kernels.common.dense import COMPUTE_DTYPES, check_dense
from mlff_triton.kernels.common.operators import operator

_MAX_CHANNELS = 16384
_MAX_BACKWARD_PROGRAMS = 512  # each writes one row of partial sums


@triton.jit
def _layer_norm_fwd_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    total_ptr,
    mean_ptr,
    rstd_ptr,
    n_rows,
    channels,
    eps: tl.float64,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,
):
    """Write y, the sum t of x and residual if there is one, and mean and 1 / deviation of rows.

    x, residual, y and t are [n_rows, channels], weight and bias [channels], mean and 1 / deviation
    [n_rows]. Grid: (row blocks,).
    """
    dtype: tl.constexpr = mean_ptr.dtype.element_ty
    row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    channel = tl.arange(0, BLOCK_CHANNELS)
    inside = channel < channels
    mask = (row < n_rows)[:, None] & inside[None, :]
    offsets = row[:, None] * channels + channel[None, :]

    x = tl.load(x_ptr + offsets, mask, other=0.0).to(dtype)  # [BLOCK_ROWS, BLOCK_CHANNELS]
    if residual_ptr is not None:
        x += tl.load(residual_ptr + offsets, mask, other=0.0).to(dtype)
        tl.store(total_ptr + offsets, x.to(total_ptr.dtype.element_ty), mask)
    weight = tl.load(weight_ptr + channel, inside, other=0.0).to(dtype)
    bias = tl.load(bias_ptr + channel, inside, other=0.0).to(dtype)

    mean = tl.sum(x, 1) / channels
    centered = tl.where(inside[None, :], x - mean[:, None], 0.0)
    variance = tl.sum(centered * centered, 1) / channels
    rstd = 1 / tl.sqrt((variance + eps).to(dtype))
    y = centered * rstd[:, None] * weight[None, :] + bias[None, :]

    tl.store(y_ptr + offsets, y.to(y_ptr.dtype.element_ty), mask)
    tl.store(mean_ptr + row, mean, row < n_rows)
    tl.store(rstd_ptr + row, rstd, row < n_rows)


@triton.jit
def _layer_norm_bwd_kernel(
    grad_ptr,
    x_ptr,
    weight_ptr,
    mean_ptr,
    rstd_ptr,
    grad_x_ptr,
    grad_weight_ptr,
    grad_bias_ptr,
    n_rows,
    channels,
    n_programs,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,
):
    """Write gradients of x [n_rows, channels], and partial ones of weight and bias.

    The partial gradients are [n_programs, channels]. Grid: (n_programs,), each of which takes every
    n_programs-th row block.
    """
    dtype: tl.constexpr = mean_ptr.dtype.element_ty
    program = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, BLOCK_CHANNELS)
    inside = channel < channels
    weight = tl.load(weight_ptr + channel, inside, other=0.0).to(dtype)[None, :]

    grad_weight = tl.zeros((BLOCK_ROWS, BLOCK_CHANNELS), dtype)
    grad_bias = tl.zeros((BLOCK_ROWS, BLOCK_CHANNELS), dtype)
    for start in range(program * BLOCK_ROWS, n_rows, n_programs * BLOCK_ROWS):
        row = start + tl.arange(0, BLOCK_ROWS)
        mask = (row < n_rows)[:, None] & inside[None, :]
        offsets = row[:, None].to(tl.int64) * channels + channel[None, :]
        grad = tl.load(grad_ptr + offsets, mask, other=0.0).to(dtype)
        x = tl.load(x_ptr + offsets, mask, other=0.0).to(dtype)
        mean = tl.load(mean_ptr + row, row < n_rows, other=0.0)[:, None]
        rstd = tl.load(rstd_ptr + row, row < n_rows, other=0.0)[:, None]

        normed = tl.where(mask, (x - mean) * rstd, 0.0)
        slope = grad * weight
        level = (tl.sum(slope, 1) / channels)[:, None]
        along = (tl.sum(slope * normed, 1) / channels)[:, None]
        grad_x = rstd * (slope - level - normed * along)
        grad_weight += grad * normed
        grad_bias += grad
        tl.store(grad_x_ptr + offsets, grad_x.to(grad_x_ptr.dtype.element_ty), mask)

    partial = program * channels + channel
    tl.store(grad_weight_ptr + partial, tl.sum(grad_weight, 0), inside)
    tl.store(grad_bias_ptr + partial, tl.sum(grad_bias, 0), inside)


@triton.jit
def _project(x, normed, mask, channels):
    """Return P(x), zero outside of the mask, and the mean of x n."""
    mean = (tl.sum(x, 1) / channels)[:, None]
    along = (tl.sum(x * normed, 1) / channels)[:, None]
    return tl.where(mask, x - mean - along * normed, 0.0), along


@triton.jit
def _layer_norm_bwd_bwd_kernel(
    change_ptr,
    change_weight_ptr,
    change_bias_ptr,
    grad_ptr,
    x_ptr,
    weight_ptr,
    mean_ptr,
    rstd_ptr,
    grad_grad_ptr,
    grad_x_ptr,
    grad_weight_ptr,
    n_rows,
    channels,
    n_programs,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,
):
    """Write gradients of grad and x [n_rows, channels], and partial ones of the weight.

    The changes of x, weight and bias are given. The partial gradients are [n_programs, channels].
    Grid: (n_programs,), each of which takes every n_programs-th row block.
    """
    dtype: tl.constexpr = mean_ptr.dtype.element_ty
    program = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, BLOCK_CHANNELS)
    inside = channel < channels
    weight = tl.load(weight_ptr + channel, inside, other=0.0).to(dtype)[None, :]
    change_weight = tl.load(change_weight_ptr + channel, inside, other=0.0).to(dtype)[None, :]
    change_bias = tl.load(change_bias_ptr + channel, inside, other=0.0).to(dtype)[None, :]

    grad_weight = tl.zeros((BLOCK_ROWS, BLOCK_CHANNELS), dtype)
    for start in range(program * BLOCK_ROWS, n_rows, n_programs * BLOCK_ROWS):
        row = start + tl.arange(0, BLOCK_ROWS)
        mask = (row < n_rows)[:, None] & inside[None, :]
        offsets = row[:, None].to(tl.int64) * channels + channel[None, :]
        change = tl.load(change_ptr + offsets, mask, other=0.0).to(dtype)
        grad = tl.load(grad_ptr + offsets, mask, other=0.0).to(dtype)
        x = tl.load(x_ptr + offsets, mask, other=0.0).to(dtype)
        mean = tl.load(mean_ptr + row, row < n_rows, other=0.0)[:, None]
        rstd = tl.load(rstd_ptr + row, row < n_rows, other=0.0)[:, None]

        normed = tl.where(mask, (x - mean) * rstd, 0.0)
        slope, slope_along = _project(grad * weight, normed, mask, channels)
        turn, turn_along = _project(change, normed, mask, channels)
        of_weight, _ = _project(grad * change_weight, normed, mask, channels)
        level = (tl.sum(change * slope, 1) / channels)[:, None]
        grad_grad = rstd * turn * weight + change_weight * normed + change_bias
        bent = level * normed + slope_along * turn + turn_along * slope
        grad_x = rstd * (of_weight - rstd * bent)
        grad_weight += rstd * turn * grad
        tl.store(grad_grad_ptr + offsets, grad_grad.to(grad_grad_ptr.dtype.element_ty), mask)
        tl.store(grad_x_ptr + offsets, grad_x.to(grad_x_ptr.dtype.element_ty), mask)

    partial = program * channels + channel
    tl.store(grad_weight_ptr + partial, tl.sum(grad_weight, 0), inside)


class _Blocks(NamedTuple):
    rows: int
    channels: int
    warps: int


def _blocks(channels: int) -> _Blocks:
    """Return blocks of about 1024 elements, or one row, with at most 32 elements per thread."""
    block = triton.next_power_of_2(channels)
    return _Blocks(max(1, 1024 // block), block, min(16, max(4, block // 512)))


@operator("layer_norm_backward_twice", outputs=("grad", "x", "weight"))
def _layer_norm_backward_twice(
    change: Tensor,
    change_weight: Tensor,
    change_bias: Tensor,
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    mean: Tensor,
    rstd: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of ``grad``, x and weight."""
    n_rows, channels = x.shape
    grad_grad, grad_x = x.new_empty(x.shape), x.new_empty(x.shape)
    if not x.numel():
        return grad_grad, grad_x, weight.new_zeros(channels)
    blocks = _blocks(channels)
    n_programs = min(triton.cdiv(n_rows, blocks.rows), _MAX_BACKWARD_PROGRAMS)
    partial = mean.new_empty(n_programs, channels)
    with torch.cuda.device_of(x):
        _layer_norm_bwd_bwd_kernel[(n_programs,)](
            change.contiguous(),
            change_weight.contiguous(),
            change_bias.contiguous(),
            grad.contiguous(),
            x.contiguous(),
            weight.contiguous(),
            mean,
            rstd,
            grad_grad,
            grad_x,
            partial,
            n_rows,
            channels,
            n_programs,
            BLOCK_ROWS=blocks.rows,
            BLOCK_CHANNELS=blocks.channels,
            num_warps=blocks.warps,
        )
    return grad_grad, grad_x, partial.sum(0).to(weight.dtype)


@operator(
    "layer_norm_backward",
    outputs=("x", "weight", "weight"),
    gradients=_layer_norm_backward_twice,
)
def _layer_norm_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    mean: Tensor,
    rstd: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x, weight and bias, computed by a limited number of programs."""
    n_rows, channels = x.shape
    if not x.numel():
        return x.new_empty(x.shape), weight.new_zeros(channels), weight.new_zeros(channels)
    grad_x = x.new_empty(x.shape)
    blocks = _blocks(channels)
    n_programs = min(triton.cdiv(n_rows, blocks.rows), _MAX_BACKWARD_PROGRAMS)
    partial = mean.new_empty(2, n_programs, channels)
    with torch.cuda.device_of(x):
        _layer_norm_bwd_kernel[(n_programs,)](
            grad.contiguous(),
            x.contiguous(),
            weight.contiguous(),
            mean,
            rstd,
            grad_x,
            partial[0],
            partial[1],
            n_rows,
            channels,
            n_programs,
            BLOCK_ROWS=blocks.rows,
            BLOCK_CHANNELS=blocks.channels,
            num_warps=blocks.warps,
        )
    return grad_x, partial[0].sum(0).to(weight.dtype), partial[1].sum(0).to(weight.dtype)


def _empty_outputs(
    x: Tensor, residual: Tensor | None, *_: object
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return y, t, which has no rows without a residual, mean and 1 / deviation, uninitialized."""
    dtype = COMPUTE_DTYPES[x.dtype]
    return (
        x.new_empty(x.shape),
        x.new_empty(0 if residual is None else len(x), x.shape[1]),
        x.new_empty(len(x), dtype=dtype),
        x.new_empty(len(x), dtype=dtype),
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, residual, weight, _, _ = inputs
    _, total, mean, rstd = output
    ctx.mark_non_differentiable(mean, rstd)
    ctx.has_residual = residual is not None
    ctx.save_for_backward(total if ctx.has_residual else x, weight, mean, rstd)


def _gradients(
    ctx: Any, grad_y: Tensor, grad_total: Tensor, *_: Tensor
) -> tuple[Tensor | None, ...]:
    grad_x, grad_weight, grad_bias = _layer_norm_backward(grad_y, *ctx.saved_tensors)
    if not ctx.has_residual:
        return grad_x, None, grad_weight, grad_bias
    grad_x = grad_x + grad_total
    return grad_x, grad_x, grad_weight, grad_bias


@operator("layer_norm", outputs=_empty_outputs, differentiate=_gradients, saves=_save)
def _layer_norm(
    x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return y, t, mean and 1 / deviation for rows [M, F]."""
    outputs = _empty_outputs(x, residual)
    n_rows, channels = x.shape
    if x.numel():
        blocks = _blocks(channels)
        with torch.cuda.device_of(x):
            _layer_norm_fwd_kernel[(triton.cdiv(n_rows, blocks.rows),)](
                x.contiguous(),
                None if residual is None else residual.contiguous(),
                weight.contiguous(),
                bias.contiguous(),
                *outputs,
                n_rows,
                channels,
                eps,
                BLOCK_ROWS=blocks.rows,
                BLOCK_CHANNELS=blocks.channels,
                num_warps=blocks.warps,
            )
    return outputs


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """Apply layer normalization over the last axis.

    Parameters
    ----------
    x : [..., F]
        Rows of at most 16384 channels; float16, bfloat16, float32 or float64. Half precisions are
        normalized in float32, and have no second derivatives.
    weight, bias : [F]
        Weight and bias, of the dtype of ``x``; the bias is optional.
    eps : float
        Added to the variance.

    Returns
    -------
    [..., F]
        Normalized rows, of the dtype of ``x``.

    Raises
    ------
    InputError
        If shapes, dtypes or devices do not fit together.
    BackendError
        If the tensors are not on a GPU.

    References
    ----------
    https://arxiv.org/abs/1607.06450

    Examples
    --------
    >>> x = torch.tensor([[1.0, 3.0]], device="cuda")
    >>> layer_norm(x, torch.ones(2, device="cuda"), eps=0.0).tolist()
    [[-1.0, 1.0]]
    """
    return _normalize(x, None, weight, bias, eps)[0]


def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None = None, eps: float = 1e-5
) -> tuple[Tensor, Tensor]:
    """Add a residual and apply layer normalization, in one pass.

    Parameters
    ----------
    x, residual : [..., F]
        Terms of the sum, of the same dtype.
    weight, bias, eps
        As for `layer_norm`, which raises the same errors.

    Returns
    -------
    tuple of [..., F] and [..., F]
        The normalized sum, and the sum.
    """
    check_shape("residual", residual, x.shape)
    y, total = _normalize(x, residual, weight, bias, eps)
    return y, total.view(x.shape)


def _normalize(
    x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    check_dense(x=x, residual=residual, weight=weight, bias=bias)
    if not x.dim() or not 0 < x.shape[-1] <= _MAX_CHANNELS:
        raise InputError(
            f"x has the shape {list(x.shape)}: use rows of 1 to {_MAX_CHANNELS} channels"
        )
    channels = x.shape[-1]
    check_shape("weight", weight, (channels,))
    if bias is None:
        bias = torch.zeros_like(weight)
    check_shape("bias", bias, (channels,))
    rows = x.reshape(-1, channels)
    residual_rows = None if residual is None else residual.reshape(-1, channels)
    y, total, _, _ = _layer_norm(rows, residual_rows, weight, bias, eps)
    return y.view(x.shape), total
