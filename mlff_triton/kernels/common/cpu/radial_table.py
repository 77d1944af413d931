"""Cubic Hermite interpolation in a radial table: see `kernels.common.reference.radial_table`.

Tables are packed by vectors of channels, see `mlff_triton.kernels.common.cpu.packed`.
"""

from __future__ import annotations

from mlff_triton.kernels.common.cpu.algebra import algebra
from mlff_triton.kernels.common.cpu.vectors import load_three


@algebra
def weights(fraction, width):
    """Return the factors of the slope, the secant and the next slope in a value."""
    t, u = fraction, 1 - fraction
    return width * t * u * u, width * t * t * (3 - t - t), -width * t * t * u


@algebra
def slope_weights(fraction):
    """Return the factors of the slope, the secant and the next slope in a derivative."""
    t, u = fraction, 1 - fraction
    return u * (u - t - t), 6 * t * u, t * (t - u - u)


@algebra
def _blend(knots, ends, w):
    """Return three functions from values, slopes and secants, and the slopes at the end."""
    return tuple(
        value + (w[0] * slope + w[1] * secant + w[2] * end)
        for (value, slope, secant), end in zip(knots, ends, strict=True)
    )


@algebra
def _blend_slopes(knots, ends, w):
    """Return the derivatives of three functions."""
    return tuple(
        w[0] * slope + w[1] * secant + w[2] * end
        for (_, slope, secant), end in zip(knots, ends, strict=True)
    )


@algebra
def _knots(table, block, interval, lanes):
    """Return values, slopes and secants of three functions in an interval."""
    return (
        load_three(table, (block, interval, 0, None, 0), lanes),
        load_three(table, (block, interval, 1, None, 0), lanes),
        load_three(table, (block, interval, 2, None, 0), lanes),
    )


@algebra
def look_up(table, block, interval, w, lanes):
    """Return the three tabulated functions of an edge for a block of channels."""
    ends = load_three(table, (block, interval + 1, None, 1, 0), lanes)
    return _blend(_knots(table, block, interval, lanes), ends, w)


@algebra
def look_up_both(table, block, interval, w, d, lanes):
    """Return the three tabulated functions and their derivatives, with weights w and d."""
    knots = _knots(table, block, interval, lanes)
    ends = load_three(table, (block, interval + 1, None, 1, 0), lanes)
    return _blend(knots, ends, w), _blend_slopes(knots, ends, d)
