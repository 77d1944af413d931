"""Exponential function of vectors.

    exp(x) = 2^n exp(r)      n = round(x / ln 2)      r = x - n ln 2

The libraries that compilers find provide it only for scalars, or are missing. Its error is a few
units in the last place.
"""

from __future__ import annotations

from math import factorial, log
from typing import NamedTuple

from llvmlite import ir
from numba.core.types import float32

from mlff_triton.kernels.common.cpu.algebra import algebra

LIBERTIES = ("contract",)
"""Liberties of the compiler. With more, it would remove the rounding."""


class _Format(NamedTuple):
    """A floating-point format, and the constants of its exponential function.

    Attributes
    ----------
    bits, digits : int
        Bits of a number, and bits after the binary point.
    largest : float
        Arguments are clamped to this size; larger ones would exceed the range of the exponent.
    high, low : float
        Leading bits of ln 2, whose products with n are exact, and the rest.
    degree : int
        Degree of the Taylor polynomial in r, which is at most ln 2 / 2.
    """

    bits: int
    digits: int
    largest: float
    high: float
    low: float
    degree: int


_SINGLE = _Format(32, 23, 87.0, 0.693359375, -2.12194440054690583e-4, 7)
_HIGH, _LOW = map(float.fromhex, ("0x1.62e42fee00000p-1", "0x1.a39ef35793c76p-33"))
_DOUBLE = _Format(64, 52, 708.0, _HIGH, _LOW, 13)


@algebra
def exponential(vector):
    """Return exp(x) of a vector, whose elements are clamped to the range of their precision."""
    kind = _SINGLE if vector.kind.element == float32 else _DOUBLE
    return vector.apply(
        vector.kind, lambda builder, x: _Writer(builder, x.type, kind).exponential(x)
    )


class _Writer(NamedTuple):
    """Writer of instructions on vectors of a format, with constants for all elements."""

    builder: ir.IRBuilder
    wide: ir.VectorType
    kind: _Format

    def exponential(self, x):
        """Return exp(x)."""
        builder, kind = self.builder, self.kind
        x = self._clamp(self._clamp(x, ">", kind.largest), "<", -kind.largest)
        # numbers of this size have no bits after the point, so n is in their last ones
        shift = self._constant(1.5 * 2.0**kind.digits)
        shifted = self._fused(x, self._constant(1 / log(2)), shift)
        n = builder.fsub(shifted, shift, flags=LIBERTIES)
        r = self._fused(n, self._constant(-kind.high), x)
        r = self._fused(n, self._constant(-kind.low), r)
        found = self._constant(1 / factorial(kind.degree))
        for k in reversed(range(kind.degree)):
            found = self._fused(found, r, self._constant(1 / factorial(k)))
        whole = ir.VectorType(ir.IntType(kind.bits), self.wide.count)
        digits = ir.Constant(whole, [kind.digits] * whole.count)
        exponent = builder.shl(builder.bitcast(shifted, whole), digits)
        one = builder.bitcast(self._constant(1.0), whole)
        power = builder.bitcast(builder.add(exponent, one), self.wide)
        return builder.fmul(found, power, flags=LIBERTIES)

    def _constant(self, number):
        return ir.Constant(self.wide, [number] * self.wide.count)

    def _clamp(self, x, order, limit):
        is_outside = self.builder.fcmp_ordered(order, x, self._constant(limit))  # NaN is not
        return self.builder.select(is_outside, self._constant(limit), x)

    def _fused(self, a, b, c):
        """Return ``a b + c``."""
        return self.builder.fadd(self.builder.fmul(a, b, flags=LIBERTIES), c, flags=LIBERTIES)
