"""Float32 values as sums of parts in bfloat16, whose products take tensor cores.

    x = x_0 + x_1 + x_2

Each part is the rest of those before it, rounded to eight bits: three parts hold all bits of
float32 and two hold 16. Unlike float16, they take values of any size. Products of parts whose
indices add to more than two are below the precision of float32 and left out.
"""

from __future__ import annotations

import triton
import triton.language as tl

_HALF_UNIT = tl.constexpr(0x8000)  # of the last bit that bfloat16 has
_KEPT = tl.constexpr(-0x10000)  # bits


@triton.jit
def split_parts(x, PARTS: tl.constexpr):
    """Return the parts of float32 values, as a tuple.

    They are rounded as integers. Compilers convert values that are rounded already two at a time,
    but one by one, which is much slower, if the results are converted back for the next part.
    """
    parts = ()
    for _ in tl.static_range(PARTS - 1):
        bits = (x.to(tl.int32, bitcast=True) + _HALF_UNIT) & _KEPT
        rounded = bits.to(tl.float32, bitcast=True)
        parts = parts + (rounded.to(tl.bfloat16),)  # type: ignore[assignment] # noqa: RUF005
        x = x - rounded
    return parts + (x.to(tl.bfloat16),)  # noqa: RUF005


@triton.jit
def multiply_parts(a, b):
    """Return the product, in float32, of two matrices given as tuples of one to three parts.

    A single part may be of any dtype. Small products are added first.
    """
    PARTS: tl.constexpr = len(a)
    if PARTS == 1:
        y = tl.dot(a[0], b[0], input_precision="ieee")
    else:
        if PARTS == 2:
            y = tl.dot(a[1], b[0])
        else:
            y = tl.dot(a[2], b[0], tl.dot(a[0], b[2], tl.dot(a[1], b[1])))
            y = tl.dot(a[1], b[0], y)
        y = tl.dot(a[0], b[0], tl.dot(a[0], b[1], y))
    return y
