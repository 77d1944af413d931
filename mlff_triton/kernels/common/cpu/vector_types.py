"""Type of vectors of channels in compiled loops, see `mlff_triton.kernels.common.cpu.vectors`."""

from __future__ import annotations

import operator

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import lower_builtin, models, register_model


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
    """Convert a value to another type that is at least as wide."""
    if wanted == kind:
        return value
    if not isinstance(wanted, VectorType):
        return context.cast(builder, value, kind, wanted)
    return spread(context, builder, wanted, context.cast(builder, value, kind, wanted.element))


def spread(context, builder, vector, number):
    """Return a number as a vector."""
    lanes = context.get_value_type(vector)
    first = builder.insert_element(ir.Constant(lanes, ir.Undefined), number, cgutils.int32_t(0))
    order = ir.Constant(ir.VectorType(cgutils.int32_t, vector.lanes), [0] * vector.lanes)
    return builder.shuffle_vector(first, ir.Constant(lanes, ir.Undefined), order)


def _define(name: str) -> None:
    """Define an operation of the module `operator` by LLVM's on floating-point values."""
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
def _negate(context, builder, sig, args):  # noqa: ARG001 (Numba's signature)
    return builder.fneg(*args)
