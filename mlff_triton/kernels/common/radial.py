"""Cubic Hermite interpolation in a radial table, and the cosine cutoff, inside kernels.

A table ``[K + 1, 3, 3, F]`` holds value, slope and secant of 3 F functions at its knots; a table
``[K + 1, 3, F]`` holds those of F functions. Each edge has the interval of its distance, the
fraction of the interval, and its width. For the equations, see
`mlff_triton.kernels.common.reference.radial_table`.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl

_PI = tl.constexpr(math.pi)


@triton.jit
def look_up(table_ptr, interval, fraction, width, channel, mask, F: tl.constexpr):
    """Return the factors of the three parts, each [R, BF], for edges [R] and channels [BF]."""
    knot = table_ptr + interval.to(tl.int64)[:, None] * (9 * F) + channel[None, :]
    weights, mask = _weights(fraction[:, None], width[:, None]), mask[:, None]
    i = _rows(knot, 3 * F, mask)
    a = _rows(knot + F, 3 * F, mask)
    s = _rows(knot + 2 * F, 3 * F, mask)
    return i[0] + _blend(weights, i), a[0] + _blend(weights, a), s[0] + _blend(weights, s)


@triton.jit
def look_up_with_slope(table_ptr, interval, fraction, width, channel, mask, F: tl.constexpr):
    """Return the factors of `look_up`, and their derivatives with respect to the distance."""
    knot = table_ptr + interval.to(tl.int64)[:, None] * (9 * F) + channel[None, :]
    fraction, width, mask = fraction[:, None], width[:, None], mask[:, None]
    weights, slopes = _weights(fraction, width), _slope_weights(fraction)
    i = _rows(knot, 3 * F, mask)
    a = _rows(knot + F, 3 * F, mask)
    s = _rows(knot + 2 * F, 3 * F, mask)
    factors = (i[0] + _blend(weights, i), a[0] + _blend(weights, a), s[0] + _blend(weights, s))
    return factors, (_blend(slopes, i), _blend(slopes, a), _blend(slopes, s))


@triton.jit
def look_up_functions(table_ptr, interval, fraction, width, channel, mask, F: tl.constexpr):
    """Return F functions from a table [K + 1, 3, F], for blocks of channels and edges."""
    row = _rows(table_ptr + interval.to(tl.int64) * (3 * F) + channel, F, mask)
    return row[0] + _blend(_weights(fraction, width), row)


@triton.jit
def look_up_function_slopes(table_ptr, interval, fraction, channel, mask, F: tl.constexpr):
    """Return the derivatives of `look_up_functions` with respect to the distance."""
    row = _rows(table_ptr + interval.to(tl.int64) * (3 * F) + channel, F, mask)
    return _blend(_slope_weights(fraction), row)


@triton.jit
def cosine_cutoff(distance, cutoffs_ptr):
    """Return the cosine cutoff of distances [R] and its slope, for lower and upper cutoff [2]."""
    lower = tl.load(cutoffs_ptr).to(distance.dtype)
    upper = tl.load(cutoffs_ptr + 1).to(distance.dtype)
    has_lower = lower > 0
    sign = tl.where(has_lower, -0.5, 0.5).to(distance.dtype)
    wave_number = tl.where(has_lower, 2.0, 1.0).to(distance.dtype) * _PI / (upper - lower)
    angle = wave_number * (distance - lower)
    live = (distance < upper) & (distance > tl.where(has_lower, lower, -1.0))
    value = tl.where(live, 0.5 + sign * tl.cos(angle), 0.0)
    return value, tl.where(live, -sign * wave_number * tl.sin(angle), 0.0)


@triton.jit
def _rows(pointer, stride: tl.constexpr, mask):
    """Load value, slope and secant at the first knot, and the slope at the second: [R, BF] each."""
    return (
        tl.load(pointer, mask, other=0.0),
        tl.load(pointer + stride, mask, other=0.0),
        tl.load(pointer + 2 * stride, mask, other=0.0),
        tl.load(pointer + 4 * stride, mask, other=0.0),
    )


@triton.jit
def _blend(w, row):
    """Return the weighted sum of the first slope, the secant and the second slope: [R, BF]."""
    return w[0] * row[1] + w[1] * row[2] + w[2] * row[3]


@triton.jit
def _weights(t, h):
    """Return the weights of slopes and secant in the value, for blocks t and h."""
    return t * (1 - t) * (1 - t) * h, t * t * (3 - 2 * t) * h, t * t * (t - 1) * h


@triton.jit
def _slope_weights(t):
    """Return the weights of slopes and secant in the derivative, for a block t."""
    return (1 - t) * (1 - 3 * t), 6 * t * (1 - t), t * (3 * t - 2)
