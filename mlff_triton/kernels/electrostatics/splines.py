"""B-splines inside kernels.

    M4(x) = (y^3 - 4 max(y - 1, 0)^3) / 6      y = min(x, 4 - x)
    M_p(x) = (x M_{p-1}(x) + (p - x) M_{p-1}(x - 1)) / (p - 1)
    M_p'(x) = M_{p-1}(x) - M_{p-1}(x - 1)

Only positive terms are added, except in the cubic spline and in slopes, where little cancels.
Splines vanish outside of 0 < x < p, and NaN stays.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _distance(fraction, step, ORDER: tl.constexpr):
    """Return the distance of ``fraction + step`` from the nearer end of a spline."""
    left = fraction + step
    right = (ORDER - step) - fraction
    return tl.where(left < right, left, right)


@triton.jit
def _quadratic(fraction, step):
    """Return M3, which slopes of cubic splines need."""
    x = _distance(fraction, step, 3)
    one = tl.maximum(x - 1, 0.0)
    return tl.where(x <= 0, 0.0, 0.5 * x * x - 1.5 * one * one).to(fraction.dtype)


@triton.jit
def _cubic(fraction, step):
    """Return M4."""
    x = _distance(fraction, step, 4)
    one = tl.maximum(x - 1, 0.0)
    return tl.where(x <= 0, 0.0, (x * x * x - 4 * one * one * one) * (1 / 6)).to(fraction.dtype)


@triton.jit
def _raised(fraction, step, at, before, ORDER: tl.constexpr):
    """Return M_p from M_{p-1} at the same place and at the one before."""
    return ((fraction + step) * at + ((ORDER - step) - fraction) * before) * (1 / (ORDER - 1))


@triton.jit
def _quartic(fraction, step):
    """Return M5."""
    at, before = _cubic(fraction, step), _cubic(fraction, step - 1)
    return _raised(fraction, step, at, before, 5).to(fraction.dtype)


@triton.jit
def spline(fraction, step, ORDER: tl.constexpr):
    """Return the values of a B-spline of order 4, 5 or 6 at ``fraction + step``."""
    if ORDER == 4:
        value = _cubic(fraction, step)
    elif ORDER == 5:
        value = _quartic(fraction, step)
    else:
        at, before = _quartic(fraction, step), _quartic(fraction, step - 1)
        value = _raised(fraction, step, at, before, 6).to(fraction.dtype)
    return value


@triton.jit
def spline_slope(fraction, step, ORDER: tl.constexpr):
    """Return the derivatives of a B-spline of order 4, 5 or 6 at ``fraction + step``."""
    if ORDER == 4:
        slope = _quadratic(fraction, step) - _quadratic(fraction, step - 1)
    elif ORDER == 5:
        slope = _cubic(fraction, step) - _cubic(fraction, step - 1)
    else:
        slope = _quartic(fraction, step) - _quartic(fraction, step - 1)
    return slope
