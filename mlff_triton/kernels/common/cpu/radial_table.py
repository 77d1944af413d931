"""Cubic Hermite interpolation in a radial table: see `kernels.common.reference.radial_table`.

Tables are packed by vectors of channels, see `mlff_triton.kernels.common.cpu.packed`.
"""

from __future__ import annotations

from mlff_triton.kernels.common.cpu.compilation import inlined
from mlff_triton.kernels.common.cpu.vectors import load_vector


@inlined
def weights(fraction, width):
    """Return the factors of the slope, the secant and the next slope in a value."""
    number = type(fraction)
    t, u = fraction, number(1) - fraction
    return width * t * u * u, width * t * t * (number(3) - t - t), -width * t * t * u


@inlined
def slope_weights(fraction):
    """Return the factors of the slope, the secant and the next slope in a derivative."""
    number = type(fraction)
    t, u = fraction, number(1) - fraction
    return u * (u - t - t), number(6) * t * u, t * (t - u - u)


@inlined
def _knots(table, block, interval, part, lanes):
    """Return value, slope and secant of a function in an interval, and the slope at its end."""
    return (
        load_vector(table, (block, interval, part, 0, 0), lanes),
        load_vector(table, (block, interval, part, 1, 0), lanes),
        load_vector(table, (block, interval, part, 2, 0), lanes),
        load_vector(table, (block, interval + 1, part, 1, 0), lanes),
    )


@inlined
def look_up(table, block, interval, w, lanes):
    """Return the three tabulated functions of an edge for a block of channels."""
    v0, m0, s0, n0 = _knots(table, block, interval, 0, lanes)
    v1, m1, s1, n1 = _knots(table, block, interval, 1, lanes)
    v2, m2, s2, n2 = _knots(table, block, interval, 2, lanes)
    return (
        v0 + (w[0] * m0 + w[1] * s0 + w[2] * n0),
        v1 + (w[0] * m1 + w[1] * s1 + w[2] * n1),
        v2 + (w[0] * m2 + w[1] * s2 + w[2] * n2),
    )


@inlined
def look_up_both(table, block, interval, w, d, lanes):
    """Return the three tabulated functions and their derivatives, with weights w and d."""
    v0, m0, s0, n0 = _knots(table, block, interval, 0, lanes)
    v1, m1, s1, n1 = _knots(table, block, interval, 1, lanes)
    v2, m2, s2, n2 = _knots(table, block, interval, 2, lanes)
    values = (
        v0 + (w[0] * m0 + w[1] * s0 + w[2] * n0),
        v1 + (w[0] * m1 + w[1] * s1 + w[2] * n1),
        v2 + (w[0] * m2 + w[1] * s2 + w[2] * n2),
    )
    slopes = (
        d[0] * m0 + d[1] * s0 + d[2] * n0,
        d[0] * m1 + d[1] * s1 + d[2] * n1,
        d[0] * m2 + d[1] * s2 + d[2] * n2,
    )
    return values, slopes
