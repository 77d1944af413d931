"""Cubic Hermite interpolation in a radial table: see `kernels.common.reference.radial_table`.

Tables are [K + 1, 3, 3, F]: value, slope and secant of three functions at each knot.
"""

from __future__ import annotations

from mlff_triton.kernels.common.cpu.compilation import inlined


@inlined
def look_up(table, interval, fraction, width, out):
    """Write the tabulated functions of one edge to ``out`` [3, F]."""
    number = table.dtype.type
    t, u = fraction, number(1) - fraction
    first = width * t * u * u
    secant = width * t * t * (number(3) - t - t)
    last = -width * t * t * u
    for part in range(3):
        for f in range(out.shape[1]):
            out[part, f] = table[interval, 0, part, f] + (
                first * table[interval, 1, part, f]
                + secant * table[interval, 2, part, f]
                + last * table[interval + 1, 1, part, f]
            )


@inlined
def look_up_slope(table, interval, fraction, out):
    """Write the derivatives of the tabulated functions of one edge to ``out`` [3, F]."""
    number = table.dtype.type
    t, u = fraction, number(1) - fraction
    first = u * (u - t - t)
    secant = number(6) * t * u
    last = t * (t - u - u)
    for part in range(3):
        for f in range(out.shape[1]):
            out[part, f] = (
                first * table[interval, 1, part, f]
                + secant * table[interval, 2, part, f]
                + last * table[interval + 1, 1, part, f]
            )
