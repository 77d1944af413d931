"""Sizes of blocks for matrix units."""

from __future__ import annotations

import triton

_SMALLEST = 16


def block_side(n: int) -> int:
    """Return the smallest side of a block for matrix units that holds ``n`` rows or columns."""
    return max(_SMALLEST, int(triton.next_power_of_2(n)))
