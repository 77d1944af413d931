"""B-splines inside kernels.

    M(x) = sum_j (-1)^j binomial(p, j) max(x - j, 0)^(p - 1) / (p - 1)!      for 0 < x < p

is symmetric about p / 2. The sum is taken on the left, where few terms cancel.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _left_half(fraction, step, ORDER: tl.constexpr):
    """Return ``fraction + step`` or its mirror image, and True where it is the mirror image."""
    left = fraction + step
    right = (ORDER - step) - fraction
    return tl.where(left < right, left, right), left >= right


@triton.jit
def spline(fraction, step, ORDER: tl.constexpr):
    """Return the values of a B-spline at ``fraction + step``; zero unless 0 <= step < ORDER."""
    x, _ = _left_half(fraction, step, ORDER)
    one, two = tl.maximum(x - 1, 0.0), tl.maximum(x - 2, 0.0)
    if ORDER == 4:
        value = (x * x * x - 4 * one * one * one) * (1 / 6)
    elif ORDER == 5:
        squared, square_one, square_two = x * x, one * one, two * two
        value = squared * squared - 5 * square_one * square_one + 10 * square_two * square_two
        value *= 1 / 24
    else:
        squared, square_one, square_two = x * x, one * one, two * two
        value = squared * squared * x - 6 * square_one * square_one * one
        value = (value + 15 * square_two * square_two * two) * (1 / 120)
    return tl.where((step >= 0) & (step < ORDER), value, 0.0).to(fraction.dtype)


@triton.jit
def spline_slope(fraction, step, ORDER: tl.constexpr):
    """Return the derivatives of a B-spline at ``fraction + step``."""
    x, is_mirrored = _left_half(fraction, step, ORDER)
    one, two = tl.maximum(x - 1, 0.0), tl.maximum(x - 2, 0.0)
    if ORDER == 4:
        slope = (x * x - 4 * one * one) * 0.5
    elif ORDER == 5:
        slope = (x * x * x - 5 * one * one * one + 10 * two * two * two) * (1 / 6)
    else:
        squared, square_one, square_two = x * x, one * one, two * two
        slope = squared * squared - 6 * square_one * square_one + 15 * square_two * square_two
        slope *= 1 / 24
    slope = tl.where(is_mirrored, -slope, slope)
    return tl.where((step >= 0) & (step < ORDER), slope, 0.0).to(fraction.dtype)
