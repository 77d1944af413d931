"""Cubic Hermite interpolation in a radial table, inside kernels.

A table ``[K + 1, 3, 3, F]`` holds value, slope and secant of 3 F functions at its knots. Each edge
has the interval of its distance, the fraction of the interval, and its width. For the equations,
see `mlff_triton.kernels.common.reference.radial_table`.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def look_up(table_ptr, interval, fraction, width, channel, mask, F: tl.constexpr):
    """Return the factors of the three parts, each [R, BF], for edges [R] and channels [BF]."""
    knot = table_ptr + interval.to(tl.int64)[:, None] * (9 * F) + channel[None, :]
    weights, mask = _weights(fraction, width), mask[:, None]
    i = _rows(knot, F, mask)
    a = _rows(knot + F, F, mask)
    s = _rows(knot + 2 * F, F, mask)
    return i[0] + _blend(weights, i), a[0] + _blend(weights, a), s[0] + _blend(weights, s)


@triton.jit
def look_up_with_slope(table_ptr, interval, fraction, width, channel, mask, F: tl.constexpr):
    """Return the factors of `look_up`, and their derivatives with respect to the distance."""
    knot = table_ptr + interval.to(tl.int64)[:, None] * (9 * F) + channel[None, :]
    weights, slopes, mask = _weights(fraction, width), _slope_weights(fraction), mask[:, None]
    i = _rows(knot, F, mask)
    a = _rows(knot + F, F, mask)
    s = _rows(knot + 2 * F, F, mask)
    factors = (i[0] + _blend(weights, i), a[0] + _blend(weights, a), s[0] + _blend(weights, s))
    return factors, (_blend(slopes, i), _blend(slopes, a), _blend(slopes, s))


@triton.jit
def _rows(pointer, F: tl.constexpr, mask):
    """Load value, slope and secant at the first knot, and the slope at the second: [R, BF] each."""
    return (
        tl.load(pointer, mask, other=0.0),
        tl.load(pointer + 3 * F, mask, other=0.0),
        tl.load(pointer + 6 * F, mask, other=0.0),
        tl.load(pointer + 12 * F, mask, other=0.0),
    )


@triton.jit
def _blend(w, row):
    """Return the weighted sum of the first slope, the secant and the second slope: [R, BF]."""
    return w[0] * row[1] + w[1] * row[2] + w[2] * row[3]


@triton.jit
def _weights(t, h):
    """Return the weights of slopes and secant in the value, each [R, 1], for t, h [R]."""
    first, secant, last = t * (1 - t) * (1 - t) * h, t * t * (3 - 2 * t) * h, t * t * (t - 1) * h
    return first[:, None], secant[:, None], last[:, None]


@triton.jit
def _slope_weights(t):
    """Return the weights of slopes and secant in the derivative, each [R, 1], for t [R]."""
    first, secant, last = (1 - t) * (1 - 3 * t), 6 * t * (1 - t), t * (3 * t - 2)
    return first[:, None], secant[:, None], last[:, None]
