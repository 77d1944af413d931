"""Sums of consecutive rows, such as the atomic energies of each system.

    out_b = sum_m x_m      for row_ptr[b] <= m < row_ptr[b + 1]

The derivative copies row ``b`` to every row of its segment, and the derivative of that is the sum
again. A long segment is split among n programs that each sum every n-th block. A second pass adds
their sums. The order of summation does not depend on the hardware.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.common.checks import check_device, check_floats, check_pointers
from mlff_triton.kernels.common.operators import operator

_BLOCK = 1024  # elements per block of rows and channels
_BLOCKS_PER_SPLIT = 8
_MAX_SPLITS = 128


@triton.jit
def _segment_sum_fwd_kernel(
    x_ptr,
    row_ptr_ptr,
    out_ptr,
    channels,
    n_splits,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,
):
    """Write partial sums out [B, n_splits, F] of the segments of rows x [M, F].

    Grid: (B, n_splits, blocks of channels).
    """
    segment = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    rows = tl.arange(0, BLOCK_ROWS)
    offsets = tl.program_id(2) * BLOCK_CHANNELS + tl.arange(0, BLOCK_CHANNELS)
    mask = offsets < channels
    first = tl.load(row_ptr_ptr + segment).to(tl.int64) + split * BLOCK_ROWS
    last = tl.load(row_ptr_ptr + segment + 1).to(tl.int64)

    total = tl.zeros((BLOCK_ROWS, BLOCK_CHANNELS), out_ptr.dtype.element_ty)
    for start in range(first, last, n_splits * BLOCK_ROWS):
        row = start + rows
        x = tl.load(
            x_ptr + row[:, None] * channels + offsets[None, :],
            (row < last)[:, None] & mask[None, :],
            other=0.0,
        )  # [BLOCK_ROWS, BLOCK_CHANNELS]
        total += x.to(total.dtype)
    out_row = segment * n_splits + split
    tl.store(out_ptr + out_row * channels + offsets, tl.sum(total, 0), mask)


@triton.jit
def _segment_sum_bwd_kernel(
    grad_ptr,
    row_ptr_ptr,
    out_ptr,
    channels,
    n_splits,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,
):
    """Copy the gradient [B, F] of each segment to its rows out [M, F].

    Grid: (B, n_splits, blocks of channels).
    """
    segment = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    rows = tl.arange(0, BLOCK_ROWS)
    offsets = tl.program_id(2) * BLOCK_CHANNELS + tl.arange(0, BLOCK_CHANNELS)
    mask = offsets < channels
    first = tl.load(row_ptr_ptr + segment).to(tl.int64) + split * BLOCK_ROWS
    last = tl.load(row_ptr_ptr + segment + 1).to(tl.int64)

    grad = tl.load(grad_ptr + segment * channels + offsets, mask, other=0.0)
    grad = grad.to(out_ptr.dtype.element_ty)[None, :]
    for start in range(first, last, n_splits * BLOCK_ROWS):
        row = start + rows
        tl.store(
            out_ptr + row[:, None] * channels + offsets[None, :],
            tl.broadcast_to(grad, (BLOCK_ROWS, BLOCK_CHANNELS)),
            (row < last)[:, None] & mask[None, :],
        )


def _launch(kernel: Any, n_segments: int, n_rows: int, channels: int) -> tuple[Any, int]:
    """Return a function that launches a kernel on given tensors, and the number of splits."""
    block_channels = min(triton.next_power_of_2(channels), 128)
    block_rows = _BLOCK // block_channels
    blocks = triton.cdiv(n_rows, n_segments * block_rows)
    n_splits = min(triton.cdiv(blocks, _BLOCKS_PER_SPLIT), _MAX_SPLITS)
    grid = (n_segments, n_splits, triton.cdiv(channels, block_channels))

    def launch(*tensors: Tensor) -> None:
        with torch.cuda.device_of(tensors[0]):
            kernel[grid](
                *tensors,
                channels,
                n_splits,
                BLOCK_ROWS=block_rows,
                BLOCK_CHANNELS=block_channels,
            )

    return launch, n_splits


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    del output
    x, row_ptr = inputs[:2]
    ctx.save_for_backward(row_ptr)
    ctx.n_rows, ctx.dtype = len(x), x.dtype


def _gradient(ctx: Any, grad: Tensor) -> Tensor:
    spread: Tensor = _segment_spread(grad, *ctx.saved_tensors, ctx.n_rows, ctx.dtype)
    return spread


@operator(
    "segment_sum",
    outputs=lambda x, row_ptr, dtype: x.new_empty(len(row_ptr) - 1, x.shape[1], dtype=dtype),
    differentiate=_gradient,
    saves=_save,
)
def _segment_sum(x: Tensor, row_ptr: Tensor, dtype: torch.dtype) -> Tensor:
    """Sum rows [M, F] to [B, F] in the given dtype."""
    n_segments = len(row_ptr) - 1
    n_rows, channels = x.shape
    if not n_rows or not channels or not n_segments:
        return x.new_zeros(n_segments, channels, dtype=dtype)
    launch, n_splits = _launch(_segment_sum_fwd_kernel, n_segments, n_rows, channels)
    out = x.new_empty(n_segments, n_splits, channels, dtype=dtype)
    launch(x.contiguous(), row_ptr, out)
    return out.sum(1) if n_splits > 1 else out[:, 0]


@operator(
    "segment_sum_backward",
    outputs=lambda grad, row_ptr, n_rows, dtype: grad.new_empty(  # noqa: ARG005
        n_rows, grad.shape[1], dtype=dtype
    ),
    differentiate=lambda ctx, grad: _segment_sum(grad, *ctx.saved_tensors, ctx.dtype),
    saves=_save,
)
def _segment_spread(grad: Tensor, row_ptr: Tensor, n_rows: int, dtype: torch.dtype) -> Tensor:
    """Copy sums [B, F] to rows [M, F] in the given dtype."""
    n_segments, channels = grad.shape
    out = grad.new_empty(n_rows, channels, dtype=dtype)
    if out.numel() and n_segments:
        launch, _ = _launch(_segment_sum_bwd_kernel, n_segments, n_rows, channels)
        launch(grad.contiguous(), row_ptr, out)
    return out


def segment_sum(x: Tensor, row_ptr: Tensor, accumulate: str | None = None) -> Tensor:
    """Sum the rows of each segment, reproducibly to the bit; differentiable to any order.

    Parameters
    ----------
    x : [M, F] or [M]
        Rows; float32 or float64.
    row_ptr : int64 or int32 [B + 1]
        Segment ``b`` holds the rows ``row_ptr[b]:row_ptr[b + 1]``, from 0 to M without gaps. The
        values are not checked.
    accumulate : {"float64"}, optional
        Dtype of the sums, as needed for energies; by default, the dtype of ``x``.

    Returns
    -------
    [B, F] or [B]
        Sums; zero for empty segments.

    Raises
    ------
    InputError
        If shapes, dtypes or devices do not fit together.
    BackendError
        If the tensors are not on a GPU.

    Examples
    --------
    >>> x = torch.tensor([1.0, 2.0, 4.0], device="cuda")
    >>> segment_sum(x, torch.tensor([0, 2, 2, 3], device="cuda")).tolist()
    [3.0, 0.0, 4.0]
    """
    check_floats(x=x)
    check_device(x, row_ptr)
    check_pointers(row_ptr)
    if x.dim() not in (1, 2):
        raise InputError(f"x has the shape {list(x.shape)} instead of [M, F] or [M]")
    if accumulate not in (None, "float64"):
        raise InputError(f"accumulate={accumulate!r} is unknown: use 'float64' or None")
    rows = x if x.dim() == 2 else x[:, None]
    sums: Tensor = _segment_sum(rows, row_ptr, torch.float64 if accumulate else x.dtype)
    return sums if x.dim() == 2 else sums[:, 0]
