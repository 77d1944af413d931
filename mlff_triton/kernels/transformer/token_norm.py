"""Layer normalization of packed rows plus a constant vector, and moments of rows.

    y = (t - mean(t)) / sqrt(var(t) + eps) * weight + bias      t = x + shift

The vector is usually the bias of the linear layer that computed ``x`` without it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common.dense import accumulator
from mlff_triton.kernels.common.early_launch import allow_next, early_launch, wait_for_previous


@triton.jit(do_not_specialize=["n_rows"])
def _token_norm_fwd_kernel(
    x_ptr,
    shift_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    live_ptr,
    n_rows,
    channels,
    eps: tl.float64,
    ACCUMULATE: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Normalize rows x [n_rows, channels] after adding ``shift`` [channels], and write y.

    Weight and bias are [channels]. Rows from ``live`` [1] on are not written. Grid: (row blocks of
    ROWS,).
    """
    allow_next(EARLY_LAUNCH)
    wait_for_previous(EARLY_LAUNCH)
    if live_ptr is not None:
        n_rows = tl.minimum(n_rows, tl.load(live_ptr))
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    channel = tl.arange(0, CHANNELS)
    inside = channel < channels
    mask = (row < n_rows)[:, None] & inside[None, :]
    offsets = row[:, None] * channels + channel[None, :]

    x = tl.load(x_ptr + offsets, mask, other=0.0).to(ACCUMULATE)  # [ROWS, CHANNELS]
    if shift_ptr is not None:
        x += tl.load(shift_ptr + channel, inside, other=0.0).to(ACCUMULATE)[None, :]
    weight = tl.load(weight_ptr + channel, inside, other=0.0).to(ACCUMULATE)
    bias = tl.load(bias_ptr + channel, inside, other=0.0).to(ACCUMULATE)

    mean = tl.sum(x, 1) / channels
    centered = tl.where(inside[None, :], x - mean[:, None], 0.0)
    variance = tl.sum(centered * centered, 1) / channels
    rstd = 1 / tl.sqrt((variance + eps).to(ACCUMULATE))
    y = centered * rstd[:, None] * weight[None, :] + bias[None, :]
    tl.store(y_ptr + offsets, y.to(y_ptr.dtype.element_ty), mask)


@triton.jit(do_not_specialize=["n_rows"])
def _token_moments_kernel(
    x_ptr,
    sums_ptr,
    live_ptr,
    n_rows,
    channels,
    EARLY_LAUNCH: tl.constexpr,
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Sum rows x [n_rows, channels] and their squares, and write sums [2, 1, n_rows].

    Rows from ``live`` [1] on are not written. Grid: (row blocks of ROWS,).
    """
    allow_next(EARLY_LAUNCH)
    wait_for_previous(EARLY_LAUNCH)
    capacity = n_rows
    if live_ptr is not None:
        n_rows = tl.minimum(n_rows, tl.load(live_ptr))
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    channel = tl.arange(0, CHANNELS)
    inside = row < n_rows
    x = tl.load(
        x_ptr + row[:, None] * channels + channel[None, :],
        inside[:, None] & (channel < channels)[None, :],
        other=0.0,
    ).to(sums_ptr.dtype.element_ty)  # [ROWS, CHANNELS]
    tl.store(sums_ptr + row, tl.sum(x, 1), inside)
    tl.store(sums_ptr + capacity + row, tl.sum(x * x, 1), inside)


def _blocks(channels: int) -> tuple[int, int]:
    """Return rows and channels per program: about 2048 elements, or one row."""
    block = triton.next_power_of_2(channels)
    return max(1, 2048 // block), block


def _warps(rows: int, block: int) -> int:
    return min(16, max(2, rows * block // 1024))


def token_moments(x: Tensor, live: Tensor | None) -> Tensor:
    """Sum rows and their squares, without gradients.

    Parameters
    ----------
    x : [T, C]
        Rows, contiguous.
    live : int32 [1] or None
        Number of leading rows to sum, read on the device; all if None.

    Returns
    -------
    [2, 1, T]
        Sums of the elements and of their squares; float64 for float64, float32 otherwise.
    """
    n_rows, channels = x.shape
    exact = torch.promote_types(x.dtype, torch.float32)
    sums = torch.empty(2, 1, n_rows, dtype=exact, device=x.device)
    rows, block = _blocks(channels)
    with torch.cuda.device_of(x):
        _token_moments_kernel[(triton.cdiv(n_rows, rows),)](
            x, sums, live, n_rows, channels, ROWS=rows, CHANNELS=block, **early_launch(x)
        )
    return sums


def token_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    live: Tensor | None,
    shift: Tensor | None = None,
) -> Tensor:
    """Normalize packed rows, without gradients.

    Parameters
    ----------
    x : [T, C]
        Rows, contiguous.
    weight, bias : [C]
        Weight and bias of the normalization.
    eps : float
        Added to the variance.
    live : int32 [1] or None
        Number of leading rows to normalize, read on the device; all if None. The other rows of the
        result are uninitialized.
    shift : [C], optional
        Vector added to each row before the normalization.

    Returns
    -------
    [T, C]
        Normalized rows, of the dtype of ``x``.
    """
    n_rows, channels = x.shape
    y = torch.empty_like(x)
    rows, block = _blocks(channels)
    with torch.cuda.device_of(x):
        _token_norm_fwd_kernel[(triton.cdiv(n_rows, rows),)](
            x,
            shift,
            weight,
            bias,
            y,
            live,
            n_rows,
            channels,
            eps,
            ACCUMULATE=accumulator(x),
            ROWS=rows,
            CHANNELS=block,
            num_warps=_warps(rows, block),
            **early_launch(x),
        )
    return y
