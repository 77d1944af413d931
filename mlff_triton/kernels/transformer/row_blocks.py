"""Blocks of whole rows: their sizes and normalization, and checks of tensors of rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.common.checks import check_shape

_MAX_CHANNELS = 16384


class RowBlocks(NamedTuple):
    """Rows and channels per block, and warps per program."""

    rows: int
    channels: int
    warps: int


@cache
def row_blocks(channels: int) -> RowBlocks:
    """Return blocks of about 2048 elements, or of one row, with at most 32 elements per thread."""
    block = triton.next_power_of_2(channels)
    return RowBlocks(max(1, 2048 // block), block, min(16, max(4, block // 512)))


def ceil_div(n: int, size: int) -> int:
    """Divide and round up, without the microseconds that `triton.cdiv` takes on the host."""
    return -(-n // size)


def contiguous(tensor: Tensor | None) -> Tensor | None:
    """Return the tensor in contiguous memory, or None for None."""
    return None if tensor is None else tensor.contiguous()


@triton.jit
def normalize_rows(x, weight_ptr, bias_ptr, channel, channels, eps):
    """Normalize rows [ROWS, CHANNELS] that are zero beyond their channels."""
    inside = channel < channels
    mean = tl.sum(x, 1) / channels
    centered = tl.where(inside[None, :], x - mean[:, None], 0.0)
    variance = tl.sum(centered * centered, 1) / channels
    rstd = 1 / tl.sqrt((variance + eps).to(x.dtype))
    y = centered * rstd[:, None]
    y *= tl.load(weight_ptr + channel, inside, other=0.0).to(x.dtype)[None, :]
    if bias_ptr is not None:
        y += tl.load(bias_ptr + channel, inside, other=0.0).to(x.dtype)[None, :]
    return y


def check_channels(name: str, rows: Tensor) -> int:
    """Check that rows have the shape [*, C] with a supported C, and return C."""
    check_shape(name, rows, ("*", "C"))
    channels = rows.shape[1]
    if not 0 < channels <= _MAX_CHANNELS:
        raise InputError(f"{name} has {channels} channels: use 1 to {_MAX_CHANNELS}")
    return channels


def check_optional(shape: Sequence[int | str], **tensors: Tensor | None) -> None:
    """Check that the named tensors have the shape, apart from those that are None."""
    for name, tensor in tensors.items():
        if tensor is not None:
            check_shape(name, tensor, shape)
