"""Sizes of blocks."""

from __future__ import annotations

import triton
from torch import Tensor

_SMALLEST = 16
_BYTES = 512


def block_side(n: int) -> int:
    """Return the smallest side of a block for matrix units that holds ``n`` rows or columns."""
    return max(_SMALLEST, int(triton.next_power_of_2(n)))


def channel_block(x: Tensor) -> int:
    """Return channels per program of tensors of atoms [..., F].

    They are few enough for a warp to keep nine components and their sums in registers.
    """
    channels: int = triton.next_power_of_2(x.shape[-1])
    return min(channels, _BYTES // x.element_size())
