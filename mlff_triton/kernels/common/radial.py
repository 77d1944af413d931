"""Look-up in a radial table inside a kernel: cubic Hermite interpolation between two knots.

A table ``[K + 1, 3, 3, F]`` holds value, slope and secant of 3 F functions at its knots; an edge
knows the interval it falls in, the fraction of it, and its width. The equations stand in
`reference.radial_table`.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def look_up(table_ptr, interval, fraction, width, channel, mask, F: tl.constexpr):
    """Factors of the three parts, three blocks [R, BF], for edges [R] and channels [BF]."""
    knot = table_ptr + interval.to(tl.int64)[:, None] * (9 * F) + channel[None, :]
    weights, mask = _weights(fraction, width), mask[:, None]
    i = _rows(knot, F, mask)
    a = _rows(knot + F, F, mask)
    s = _rows(knot + 2 * F, F, mask)
    return i[0] + _blend(weights, i), a[0] + _blend(weights, a), s[0] + _blend(weights, s)


@triton.jit
def look_up_with_slope(table_ptr, interval, fraction, width, channel, mask, F: tl.constexpr):
    """As `look_up`, and the derivatives with respect to the distance."""
    knot = table_ptr + interval.to(tl.int64)[:, None] * (9 * F) + channel[None, :]
    weights, slopes, mask = _weights(fraction, width), _slope_weights(fraction), mask[:, None]
    i = _rows(knot, F, mask)
    a = _rows(knot + F, F, mask)
    s = _rows(knot + 2 * F, F, mask)
    factors = (i[0] + _blend(weights, i), a[0] + _blend(weights, a), s[0] + _blend(weights, s))
    return factors, (_blend(slopes, i), _blend(slopes, a), _blend(slopes, s))


@triton.jit
def _rows(pointer, F: tl.constexpr, mask):
    """Value, slope and secant at the first knot, slope at the second."""
    return (
        tl.load(pointer, mask, other=0.0),
        tl.load(pointer + 3 * F, mask, other=0.0),
        tl.load(pointer + 6 * F, mask, other=0.0),
        tl.load(pointer + 12 * F, mask, other=0.0),
    )


@triton.jit
def _blend(w, row):
    return w[0] * row[1] + w[1] * row[2] + w[2] * row[3]


@triton.jit
def _weights(t, h):
    first, secant, last = t * (1 - t) * (1 - t) * h, t * t * (3 - 2 * t) * h, t * t * (t - 1) * h
    return first[:, None], secant[:, None], last[:, None]


@triton.jit
def _slope_weights(t):
    first, secant, last = (1 - t) * (1 - 3 * t), 6 * t * (1 - t), t * (3 * t - 2)
    return first[:, None], secant[:, None], last[:, None]
