"""Functions of numbers and vectors that become part of the loops that call them.

Numba compiles each function that a loop calls by itself before it becomes part of the loop, which
takes longer than the loop does. So functions without branches and loops are run instead, once for
each call in a loop, with values that write an instruction for each operation on them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, TypeVar

from numba.core import cgutils, types
from numba.core.types.containers import BaseTuple, Tuple
from numba.core.types.misc import VarArg, unliteral
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import lower_builtin

from mlff_triton.kernels.common.cpu.vectors import VectorType, as_kind

Function = TypeVar("Function", bound=Callable[..., Any])


class _Value:
    """A number or vector while a function runs; only its type matters if there is no builder."""

    def __init__(self, kind, value=None, context=None, builder=None) -> None:
        self.kind, self.value = unliteral(kind), value
        self.context, self.builder = context, builder

    def _combine(self, other, instruction, swapped=False):
        if not isinstance(other, _Value):  # a constant, in the precision of this value
            kind, element = self.kind, getattr(self.kind, "element", self.kind)
            constant = self.builder and self.context.get_constant(element, other)
            other = _Value(element, constant, self.context, self.builder)
        else:
            kind = _joined(self.kind, other.kind)
        if self.builder is None:
            return _Value(kind)
        a, b = (as_kind(self.context, self.builder, kind, x.kind, x.value) for x in (self, other))
        a, b = (b, a) if swapped else (a, b)
        found = getattr(self.builder, instruction)(a, b)
        return _Value(kind, found, self.context, self.builder)

    def __add__(self, other):
        return self._combine(other, "fadd")

    def __radd__(self, other):
        return self._combine(other, "fadd", swapped=True)

    def __sub__(self, other):
        return self._combine(other, "fsub")

    def __rsub__(self, other):
        return self._combine(other, "fsub", swapped=True)

    def __mul__(self, other):
        return self._combine(other, "fmul")

    def __rmul__(self, other):
        return self._combine(other, "fmul", swapped=True)

    def __truediv__(self, other):
        return self._combine(other, "fdiv")

    def __rtruediv__(self, other):
        return self._combine(other, "fdiv", swapped=True)

    def __neg__(self):
        negated = self.builder and self.builder.fneg(self.value)
        return _Value(self.kind, negated, self.context, self.builder)


def _joined(one, other):
    """Return the type of an operation on two values: a vector, or the wider number."""
    for kind in (one, other):
        if isinstance(kind, VectorType):
            return kind
    floats = [kind for kind in (one, other) if isinstance(kind, types.Float)]
    return max(floats, key=operator.attrgetter("bitwidth"))


def algebra(function: Function) -> Function:
    """Make a function of values and tuples of them callable from loops; it stays as it is."""

    class Template(AbstractTemplate):
        key = function

        def generic(self, args, kws):  # noqa: ARG002 (Numba's signature)
            return signature(_kinds(function(*map(_values, args))), *args)

    def lower(context, builder, sig, args):
        given = (_values(*pair, context, builder) for pair in zip(sig.args, args, strict=True))
        return _packed(context, builder, function(*given))

    infer_global(function, types.Function(Template))
    lower_builtin(function, VarArg(types.Any))(lower)
    return function


def _values(kind, value=None, context=None, builder=None):
    """Return an argument as values: one, or a tuple."""
    if not isinstance(kind, BaseTuple):
        return _Value(kind, value, context, builder)
    parts = [None] * len(kind) if builder is None else cgutils.unpack_tuple(builder, value)
    pairs = zip(kind, parts, strict=True)
    return tuple(_values(*pair, context, builder) for pair in pairs)


def _kinds(found):
    """Return the type of a result."""
    return Tuple([*map(_kinds, found)]) if isinstance(found, tuple) else found.kind


def _packed(context, builder, found):
    """Return a result as Numba represents it."""
    if not isinstance(found, tuple):
        return found.value
    parts = [_packed(context, builder, part) for part in found]
    return context.make_tuple(builder, _kinds(found), parts)
