"""Complementary error function inside kernels."""

from __future__ import annotations

import triton
import triton.language as tl

from mlff_triton.kernels.numerics.exponential import exp_of_normal


@triton.jit
def erfc(x):
    """Return erfc(x) and exp(-x^2), for x >= 0.

    In float32, erfc(x) exp(x^2) is a polynomial in 1 / (1 + x / 2), fitted by least squares to a
    relative error of 6e-8 up to x = 12. It does not cancel where erfc(x) is small.
    """
    if x.dtype == tl.float64:
        decay = tl.exp(-x * x)
        value = 1 - tl.erf(x)
    else:
        decay = exp_of_normal(tl.maximum(-x * x, -80.0))
        t = 1 / (1 + 0.5 * x)
        value = -0.0601972503 * t + 0.289869042
        value = (value * t - 0.497684855) * t + 0.289468138
        value = (value * t - 0.0340365207) * t + 0.205621538
        value = (value * t + 0.242415694) * t + 0.282462267
        value = (value * t + 0.282081896) * t * decay
    return value, decay
