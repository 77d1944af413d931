"""Float32 values as two halves in float16, whose products take tensor cores.

    x = high + low / 2^11      x y = high high + (low high + high low) / 2^11

The product of both low halves is below the precision of float32 and left out. Scaled by 2^11, low
halves of small numbers stay normal. Values must not exceed 65504, the largest number in float16;
`mlff_triton.kernels.common.scaled_halves` takes values of any size.
"""

from __future__ import annotations

import triton
import triton.language as tl

from mlff_triton.kernels.types.halves import SCALE

_SCALE = tl.constexpr(SCALE)
_1_SCALE = tl.constexpr(1 / SCALE)


@triton.jit
def split_halves(x):
    """Return the high and the low half of float32 values.

    Values larger than 65504 become infinite, so that products with them are infinite or NaN.
    """
    high = x.to(tl.float16)
    return high, ((x - high.to(tl.float32)) * _SCALE).to(tl.float16)


@triton.jit
def multiply_halves(a, b):
    """Return the product, in float32, of two matrices given as their high and low halves."""
    low = tl.dot(a[0], b[1], tl.dot(a[1], b[0]))
    return tl.dot(a[0], b[0], low * _1_SCALE)


@triton.jit
def add_halves(sums, a, b):
    """Add the product of two matrices to sums of many, those of high halves and of all others.

    Sums with low halves stay on tensor cores, which truncate: they are too small for that to show.
    Triton would move a plain addition of products of high halves there, too.
    """
    high, low = sums
    low = tl.dot(a[0], b[1], tl.dot(a[1], b[0], low))
    return tl.fma(tl.dot(a[0], b[0]), 1.0, high), low


@triton.jit
def total(sums):
    """Return the values of sums from `add_halves`."""
    return tl.fma(sums[1], _1_SCALE, sums[0])
