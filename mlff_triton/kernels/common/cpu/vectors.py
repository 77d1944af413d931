"""Vectors of channels, as values of compiled loops.

A loop takes ``lanes``, a tuple with an entry per lane, as Numba compiles a loop for each length of
a tuple. Vectors are values of LLVM, and stay in registers. Each operation on them, or on a vector
and a number, is one instruction. So a loop is fast without an analysis of its arrays by the
compiler, which takes long and often fails where many arrays are involved.
"""

from __future__ import annotations

import operator
from functools import cache

from llvmlite import binding, ir
from numba.core import cgutils, types
from numba.core.errors import TypingError
from numba.core.types.containers import UniTuple
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, models, register_model

WIDEST = 64 if binding.get_host_cpu_features().get("avx512f") else 32
"""Largest size of a vector in bytes, of which nine fit into the registers of the CPU."""


@cache
def lanes_of(channels: int, itemsize: int) -> tuple[int, ...]:
    """Return the lanes of the longest vectors that divide a number of channels evenly."""
    lanes = WIDEST // itemsize
    while channels % lanes:
        lanes //= 2
    return (0,) * lanes


class VectorType(types.Type):
    """Type of vectors of some elements.

    Parameters
    ----------
    element : numba.types.Float
    lanes : int
    """

    def __init__(self, element: types.Type, lanes: int) -> None:
        self.element, self.lanes = element, lanes
        super().__init__(f"Vector({element}, {lanes})")


@register_model(VectorType)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager, vector):
        element = manager.lookup(vector.element).get_value_type()
        super().__init__(manager, vector, ir.VectorType(element, vector.lanes))


class _Arithmetic(AbstractTemplate):
    """Types of operations on two vectors, or a vector and a number."""

    def generic(self, args, kws):  # noqa: ARG002
        vectors = [a for a in args if isinstance(a, VectorType)]
        if vectors and all(a == vectors[0] or isinstance(a, types.Number) for a in args):
            return signature(vectors[0], *args)
        return None


def as_kind(context, builder, wanted, kind, value):
    """Return a value of some type as one of another type, which is at least as wide."""
    if wanted == kind:
        return value
    if not isinstance(wanted, VectorType):
        return context.cast(builder, value, kind, wanted)
    return _spread(context, builder, wanted, context.cast(builder, value, kind, wanted.element))


def _spread(context, builder, vector, number):
    """Return a number as a vector."""
    lanes = context.get_value_type(vector)
    first = builder.insert_element(ir.Constant(lanes, ir.Undefined), number, cgutils.int32_t(0))
    order = ir.Constant(ir.VectorType(cgutils.int32_t, vector.lanes), [0] * vector.lanes)
    return builder.shuffle_vector(first, ir.Constant(lanes, ir.Undefined), order)


def _define(name: str) -> None:
    """Define an operation of the module `operator` that is LLVM's on floating-point values."""
    instruction = f"f{name[-3:]}"

    def lower(context, builder, sig, args):
        a, b = (
            as_kind(context, builder, sig.return_type, kind, value)
            for kind, value in zip(sig.args, args, strict=True)
        )
        return getattr(builder, instruction)(a, b)

    kinds = (VectorType, VectorType), (VectorType, types.Number), (types.Number, VectorType)
    for function in (getattr(operator, name), getattr(operator, f"i{name}")):
        infer_global(function)(type(f"_{name}", (_Arithmetic,), {}))
        for pair in kinds:
            lower_builtin(function, *pair)(lower)


for _name in ("add", "sub", "mul", "truediv"):
    _define(_name)

infer_global(operator.neg)(type("_neg", (_Arithmetic,), {}))


@lower_builtin(operator.neg, VectorType)
def _negate(context, builder, sig, args):
    return builder.fneg(*args)


def _pointer(context, builder, sig, args, vector, number=None):
    """Return a pointer to the vector at an index of an array, with a number in place of None."""
    (array, index, *_), (value, positions, *_) = sig.args, args
    if array.layout != "C":
        raise TypingError("vectors are parts of C-contiguous arrays")
    data = context.make_array(array)(context, builder, value)
    indices = [
        context.get_constant(types.intp, number)
        if kind == types.none
        else context.cast(builder, position, kind, types.intp)
        for position, kind in zip(cgutils.unpack_tuple(builder, positions), index, strict=True)
    ]
    element = cgutils.get_item_pointer(context, builder, array, data, indices)
    return builder.bitcast(element, context.get_value_type(vector).as_pointer())


def _load(context, builder, sig, args, vector, number=None):
    found = builder.load(_pointer(context, builder, sig, args, vector, number))
    found.align = context.get_abi_sizeof(context.get_data_type(vector.element))
    return found


def _store(context, builder, sig, args, vector, value, number=None):
    written = builder.store(value, _pointer(context, builder, sig, args, vector, number))
    written.align = context.get_abi_sizeof(context.get_data_type(vector.element))


@intrinsic
def load_vector(typing, array, index, lanes):
    """Return the vector that begins at an index, a tuple, of a C-contiguous array."""
    vector = VectorType(array.dtype, len(lanes))

    def generate(context, builder, sig, args):
        return _load(context, builder, sig, args, vector)

    return vector(array, index, lanes), generate


@intrinsic
def store_vector(typing, array, index, vector):
    """Write a vector to an array, from an index on."""

    def generate(context, builder, sig, args):
        _store(context, builder, sig, args, vector, args[2])
        return context.get_dummy_value()

    return types.none(array, index, vector), generate


def _loader(count):
    @intrinsic
    def load(typing, array, index, lanes):
        vector = VectorType(array.dtype, len(lanes))
        result = UniTuple(vector, count)

        def generate(context, builder, sig, args):
            found = [_load(context, builder, sig, args, vector, k) for k in range(count)]
            return context.make_tuple(builder, result, found)

        return result(array, index, lanes), generate

    return load


load_three, load_nine = _loader(3), _loader(9)
"""Functions as `load_vector`, of the first vectors along the axis whose index is None."""


@intrinsic
def store_all(typing, array, index, vectors):
    """Write a tuple of vectors to an array, along the axis whose index is None."""

    def generate(context, builder, sig, args):
        for k, value in enumerate(cgutils.unpack_tuple(builder, args[2])):
            _store(context, builder, sig, args, vectors[k], value, k)
        return context.get_dummy_value()

    return types.none(array, index, vectors), generate


@intrinsic
def spread(typing, number, lanes):
    """Return a vector whose elements are all one number."""
    vector = VectorType(number, len(lanes))

    def generate(context, builder, sig, args):
        return _spread(context, builder, vector, args[0])

    return vector(number, lanes), generate


@intrinsic
def total(typing, vector):
    """Return the sum of the elements of a vector, by halves."""

    def generate(context, builder, sig, args):
        (found,), lanes = args, vector.lanes
        while lanes > 1:
            lanes //= 2
            nothing = ir.Constant(found.type, ir.Undefined)
            low, high = (
                builder.shuffle_vector(
                    found,
                    nothing,
                    ir.Constant(ir.VectorType(cgutils.int32_t, lanes), list(range(k, k + lanes))),
                )
                for k in (0, lanes)
            )
            found = builder.fadd(low, high)
        return builder.extract_element(found, cgutils.int32_t(0))

    return vector.element(vector), generate
