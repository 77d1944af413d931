"""Exponentials and quotients in float32 to the last bits, and log2(e).

Fast instructions for powers of two and quotients err in the last two bits, and a rounded exponent
adds to that. Exact functions take many more instructions. These take few.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
"""Factor of exponents of e that makes them exponents of two."""

_LOG2_E_REST = tl.constexpr(1.92596298909109e-08)  # the remainder beyond float32
LN_2 = tl.constexpr(0.6931471805599453)
_ZERO = tl.constexpr(-1000.0)  # its exponential is zero
_TO_WHOLE = tl.constexpr(12583039.0)  # 3 2**22, whose sums are whole, and the bias of exponents


@triton.jit
def exp_of_normal(x):
    """Return exponentials of float32 values from -87 to 87, to the last bits.

    With x log2(e) = k + f, where k is whole and f at most a half, the last bits of k + _TO_WHOLE
    are the exponent of 2**k, and the fast instruction for 2**f is almost exact.
    """
    shifted = tl.fma(x, LOG2_E, _TO_WHOLE)
    part = tl.fma(x, _LOG2_E_REST, tl.fma(x, LOG2_E, _TO_WHOLE - shifted))
    power = (shifted.to(tl.int32, bitcast=True) << 23).to(tl.float32, bitcast=True)
    return power * tl.exp2(part)


@triton.jit
def exp_of_scores(x):
    """Return exponentials of float32 values up to 87, in half as many instructions.

    The derivative restores what rounding takes from the power. The fast instruction loses 3e-8 of
    large powers on average. Weights and their sum lose the same share.
    """
    x = tl.maximum(x, _ZERO, propagate_nan=tl.PropagateNan.ALL)
    power = x * LOG2_E
    y = tl.exp2(power)
    return tl.fma(y, tl.fma(power, -LN_2, x), y)


@triton.jit
def exact_quotient(x, y):
    """Return x / y in float32, to the last bit, for finite x and y from 1 to 1e38.

    A step of Newton's method makes the inverse exact, and another one the quotient. These are half
    the instructions of a division that takes all numbers.
    """
    root = tl.rsqrt(y)
    inverse = root * root
    inverse = tl.fma(tl.fma(-y, inverse, 1.0), inverse, inverse)
    quotient = x * inverse
    return tl.fma(tl.fma(-y, quotient, x), inverse, quotient)
