"""Functions of numbers, vectors and arrays that become part of the loops that call them.

Numba compiles each function that a loop calls separately before it becomes part of the loop, which
takes longer than compiling the loop. So functions without branches and loops are instead run once
for each call in a loop, with values that write an instruction for each operation.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import update_wrapper
from typing import Any, TypeVar

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.errors import TypingError
from numba.core.types.containers import BaseTuple, Tuple
from numba.core.types.misc import VarArg, unliteral
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import lower_builtin

from mlff_triton.kernels.common.cpu.vector_types import VectorType, as_kind, spread

Function = TypeVar("Function", bound=Callable[..., Any])


class Value:
    """A number, vector or array while a function runs; only its type matters without a builder."""

    def __init__(self, kind, value=None, context=None, builder=None) -> None:
        self.kind, self.value = unliteral(kind), value
        self.context, self.builder = context, builder

    def _combine(self, other, write, swapped=False):
        """Return a result of two values, by a method of the builder or a function."""
        if not isinstance(other, Value):  # a constant, in the precision of this value
            kind = _joined(self.kind, self.kind)
            element = getattr(kind, "element", kind)
            constant = self.builder and self.context.get_constant(element, other)
            other = Value(element, constant, self.context, self.builder)
        else:
            kind = _joined(self.kind, other.kind)
        if self.builder is None:
            return Value(kind)
        a, b = (as_kind(self.context, self.builder, kind, x.kind, x.value) for x in (self, other))
        a, b = (b, a) if swapped else (a, b)
        if callable(write):
            found = write(self.builder, a, b)
        else:
            name = write.removeprefix("f") if kind == types.intp else write
            found = getattr(self.builder, name)(a, b)
        return Value(kind, found, self.context, self.builder)

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
        return Value(self.kind, negated, self.context, self.builder)

    def __lshift__(self, other):
        return self._combine(other, "shl")

    def __rlshift__(self, other):
        return self._combine(other, "shl", swapped=True)

    def __rshift__(self, other):
        return self._combine(other, "ashr")

    def __or__(self, other):
        return self._combine(other, "or_")

    def __and__(self, other):
        return self._combine(other, "and_")

    def choose(self, other, order):
        """Return this number if it is "<" or ">" than another one, or else that one."""

        def write(builder, a, b):
            is_integer = isinstance(a.type, ir.IntType)
            compare = builder.icmp_signed if is_integer else builder.fcmp_ordered
            return builder.select(compare(order, a, b), a, b)

        return self._combine(other, write)

    def __getitem__(self, index):
        """Return an element of an array."""
        kind = self.kind.dtype
        if self.builder is None:
            return Value(kind)
        found = self.context.unpack_value(self.builder, kind, self._pointer(index))
        return Value(kind, found, self.context, self.builder)

    def __setitem__(self, index, value):
        """Write a number to an array, in its precision."""
        if self.builder is not None:
            kind, given = self.kind.dtype, value.value
            given = self.context.cast(self.builder, given, value.kind, kind)
            self.context.pack_value(self.builder, kind, given, self._pointer(index))

    def _pointer(self, index):
        """Return a pointer to an element of an array of any layout."""
        index = index if isinstance(index, tuple) else (index,)
        array = self.context.make_array(self.kind)(self.context, self.builder, self.value)
        given = self.kind, array, [self._integer(each) for each in index]
        return cgutils.get_item_pointer(self.context, self.builder, *given)

    def apply(self, kind, write):
        """Return a value of a type, written by a function of the builder and this value."""
        found = self.builder and write(self.builder, self.value)
        return Value(kind, found, self.context, self.builder)

    def spread(self, lanes):
        """Return a vector whose elements are all this number."""
        vector = VectorType(self.kind, lanes)
        return self.apply(vector, lambda builder, x: spread(self.context, builder, vector, x))

    def convert(self, kind):
        """Convert this number to another type."""
        return self.apply(kind, lambda builder, x: self.context.cast(builder, x, self.kind, kind))

    def load(self, index, lanes, count=1):
        """Return vectors of a C-contiguous array, one for each position along the axis of None."""
        vector = VectorType(self.kind.dtype, lanes)
        if self.builder is None:
            return [Value(vector)] * count
        return [
            Value(vector, self._aligned(self.builder.load(each)), self.context, self.builder)
            for each in self._pointers(index, vector, count)
        ]

    def store(self, index, vectors):
        """Write vectors to a C-contiguous array, from an index on or along the axis of None."""
        if self.builder is not None:
            places = self._pointers(index, vectors[0].kind, len(vectors))
            for vector, each in zip(vectors, places, strict=True):
                self._aligned(self.builder.store(vector.value, each))

    def _aligned(self, instruction):
        element = self.context.get_data_type(self.kind.dtype)
        instruction.align = self.context.get_abi_sizeof(element)
        return instruction

    def _pointers(self, index, vector, count):
        """Return pointers to vectors."""
        if self.kind.layout != "C":
            raise TypingError("vectors are parts of C-contiguous arrays")
        context, builder = self.context, self.builder
        array = context.make_array(self.kind)(context, builder, self.value)
        lengths = cgutils.unpack_tuple(builder, array.shape)
        offset, stride = context.get_constant(types.intp, 0), context.get_constant(types.intp, 1)
        for length, position in zip(lengths, index, strict=True):
            offset = builder.mul(offset, length)
            if position is None:
                stride = context.get_constant(types.intp, 1)
                continue
            stride = builder.mul(stride, length)
            offset = builder.add(offset, self._integer(position))
        data, wide = array.data, context.get_value_type(vector).as_pointer()
        for k in range(count):
            step = builder.mul(stride, context.get_constant(types.intp, k))
            place = builder.gep(data, [builder.add(offset, step) if k else offset])
            yield builder.bitcast(place, wide)

    def _integer(self, position):
        """Return an index as an integer of LLVM."""
        if isinstance(position, Value):
            return self.context.cast(self.builder, position.value, position.kind, types.intp)
        return self.context.get_constant(types.intp, position)


def _joined(one, other):
    """Return the type of an operation on two values: a vector, the wider number, or an index."""
    for kind in (one, other):
        if isinstance(kind, VectorType):
            return kind
    floats = [kind for kind in (one, other) if isinstance(kind, types.Float)]
    return max(floats, key=operator.attrgetter("bitwidth"), default=types.intp)


class Algebra:
    """A function of values, numbers or anything else, which Numba knows.

    Pickles contain its code, as those of Numba's functions do: other processes compile loops
    without the modules that define them.

    Parameters
    ----------
    function : callable
        Has neither branches nor loops that depend on values.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.py_func = function
        update_wrapper(self, function)

        class Template(AbstractTemplate):
            key = self

            def generic(self, args, kws):  # noqa: ARG002 (Numba's signature)
                return signature(_kinds(function(*map(_values, args))), *args)

        def lower(context, builder, sig, args):
            given = (_values(*pair, context, builder) for pair in zip(sig.args, args, strict=True))
            return _packed(context, builder, function(*given))

        infer_global(self, types.Function(Template))
        lower_builtin(self, VarArg(types.Any))(lower)

    def __call__(self, *arguments: Any) -> Any:
        """Return what the function returns."""
        return self.py_func(*arguments)

    def __reduce__(self) -> tuple[type[Algebra], tuple[Callable[..., Any]]]:
        return Algebra, (self.py_func,)


def algebra(function: Function) -> Function:
    """Make a function of values and tuples of them callable from loops as well."""
    found: Any = Algebra(function)
    return found  # type: ignore[no-any-return]


def _values(kind, value=None, context=None, builder=None):
    """Return an argument as values: one, or a tuple."""
    if kind == types.none:
        return None
    if not isinstance(kind, BaseTuple):
        return Value(kind, value, context, builder)
    if all(each == types.none for each in kind):  # lanes
        return (None,) * len(kind)
    parts = [None] * len(kind) if builder is None else cgutils.unpack_tuple(builder, value)
    pairs = zip(kind, parts, strict=True)
    return tuple(_values(*pair, context, builder) for pair in pairs)


def _kinds(found):
    """Return the type of a result."""
    if found is None:
        return types.none
    return Tuple([*map(_kinds, found)]) if isinstance(found, tuple) else found.kind


def _packed(context, builder, found):
    """Return a result as Numba represents it."""
    if found is None:
        return context.get_dummy_value()
    if not isinstance(found, tuple):
        return found.value
    parts = [_packed(context, builder, part) for part in found]
    return context.make_tuple(builder, _kinds(found), parts)


@algebra
def double(number):
    """Return a number in double precision."""
    return number.convert(types.float64)


@algebra
def smaller(one, other):
    """Return the smaller one of two numbers."""
    return one.choose(other, "<")


@algebra
def larger(one, other):
    """Return the larger one of two numbers."""
    return one.choose(other, ">")
