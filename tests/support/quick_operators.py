"""Operators of interpreted kernels that call NumPy at once where operands keep their types."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

Operator = Callable[[Any, Any], Any]

FLOATS = {"fp32", "fp64"}
INTEGERS = {f"{sign}int{8 << k}" for sign in ("", "u") for k in range(4)}
NUMBERS = FLOATS | INTEGERS
LIMITS = {"int32": 1 << 31, "int64": 1 << 63}
WIDER = {("int32", "int64"), ("fp32", "fp64")}  # NumPy has the same result type
EXACT = 1 << 24  # all integers below have a float32

ARITHMETIC = {"add": np.add, "sub": np.subtract, "mul": np.multiply}
DIVISION = {"truediv": np.divide}
COMPARISONS = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}
BITWISE = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


def keeps_type(name: str, number: Any) -> bool:
    """Return True if a tensor keeps its type in operations with a number of Python."""
    if name in LIMITS:
        return type(number) is int and -LIMITS[name] <= number < LIMITS[name]
    return name in FLOATS and type(number) in (int, float)


def is_compared_exactly(name: str, number: Any) -> bool:
    """Return True if a number is the same one in the type of a tensor and in its own.

    The interpreter turns numbers into tensors of 32 bits before it compares them.
    """
    return keeps_type(name, number) and -EXACT < number < EXACT and number == int(number)


def quick_operators(own: Any, slow: dict[str, Operator]) -> dict[str, Operator]:
    """Return operators of tensors; those of Triton serve operands that need a conversion."""
    quick = {
        f"__{prefix}{name}__": make(own, function, slow[f"__{prefix}{name}__"], kinds)
        for functions, makers, kinds in (
            (ARITHMETIC, {"": _arithmetic, "r": _reversed}, NUMBERS),
            (DIVISION, {"": _arithmetic, "r": _reversed}, FLOATS),
            (COMPARISONS, {"": _comparison}, NUMBERS),
            (BITWISE, {"": _bitwise}, INTEGERS | {"int1"}),
        )
        for prefix, make in makers.items()
        for name, function in functions.items()
    }
    negative = _reversed(own, np.subtract, lambda x, _: slow["__neg__"](x), NUMBERS)
    return quick | {"__neg__": lambda x: negative(x, 0)}


def _arithmetic(own: Any, function: Any, slow: Operator, kinds: set[str]) -> Operator:
    core, tensor, handle = _language()
    builder = own.builder

    def operator(left: Any, right: Any) -> Any:
        kind = left.dtype.name
        if type(right) is core.constexpr:
            right = right.value
        if kind in kinds and not (kind in INTEGERS and builder.options.sanitize_overflow):
            both = None
            if type(right) is tensor:
                both = _common_type(left, right)
            elif keeps_type(kind, right):
                right, both = _constant(own, right, left.dtype), left.type
            if both is not None:
                data = function(left.handle.data, right.handle.data)
                return tensor(handle(data, both.scalar), both)
        elif function is np.add and type(right) is tensor and right.dtype.name in LIMITS:
            both = _common_shape(left, right, left.dtype) if left.dtype.is_ptr() else None
            if both is not None:
                return tensor(builder.create_addptr(left.handle, right.handle), both)
        return slow(left, right)

    return operator


def _reversed(own: Any, function: Any, slow: Operator, kinds: set[str]) -> Operator:
    """Return an operator of a number and a tensor, which comes first among its arguments."""
    core, tensor, handle = _language()
    builder = own.builder

    def operator(right: Any, left: Any) -> Any:
        kind = right.dtype.name
        if type(left) is core.constexpr:
            left = left.value
        if (
            kind in kinds
            and keeps_type(kind, left)
            and not (kind in INTEGERS and builder.options.sanitize_overflow)
        ):
            number = _constant(own, left, right.dtype).handle
            data = function(number.data, right.handle.data)
            return tensor(handle(data, number.dtype), right.type)
        return slow(right, left)

    return operator


def _comparison(own: Any, function: Any, slow: Operator, kinds: set[str]) -> Operator:
    core, tensor, handle = _language()

    def operator(left: Any, right: Any) -> Any:
        kind, both = left.dtype.name, None
        if type(right) is core.constexpr:
            right = right.value
        if kind in kinds:
            if type(right) is tensor:
                both = _common_type(left, right)
            elif is_compared_exactly(kind, right):
                right, both = _constant(own, right, left.dtype), left.type
        if both is None:
            return slow(left, right)
        data = function(left.handle.data, right.handle.data)
        return tensor(handle(data, both.scalar), both.with_element_ty(core.int1))

    return operator


def _bitwise(_own: Any, function: Any, slow: Operator, kinds: set[str]) -> Operator:
    """Return an operator of tensors whose arrays have one type, as masks come in several."""
    _, tensor, handle = _language()

    def operator(left: Any, right: Any) -> Any:
        both = None
        # Triton turns scalar masks into integers before it combines them with others.
        fits = type(right) is tensor and left.type.is_block() == right.type.is_block()
        if fits and left.dtype.name in kinds and left.handle.data.dtype == right.handle.data.dtype:
            both = _common_type(left, right)
        if both is None:
            return slow(left, right)
        data = function(left.handle.data, right.handle.data)
        return tensor(handle(data, left.handle.dtype.scalar), both)

    return operator


def quick_where(slow: Callable[..., Any]) -> Callable[..., Any]:
    """Return a choice between operands of one type, one of which has the shape of the condition."""

    def where(own: Any, condition: Any, x: Any, y: Any) -> Any:
        _, tensor, handle = _language()
        shape = condition.shape
        for like in (x, y):
            if type(like) is tensor and like.shape is shape and like.dtype.name in NUMBERS:
                pair = [_operand(own, each, like) for each in (x, y)]
                if condition.dtype.name == "int1" and all(each is not None for each in pair):
                    data = np.where(condition.handle.data, *pair)
                    return tensor(handle(data, like.dtype), like.type)
        return slow(own, condition, x, y)

    return where


def _operand(own: Any, value: Any, like: Any) -> Any:
    """Return the array of a value that has the type of a tensor, or takes it; else None."""
    core, tensor, _ = _language()
    name = like.dtype.name
    if type(value) is not tensor:
        return _constant(own, value, like.dtype).handle.data if keeps_type(name, value) else None
    fits = value.shape is like.shape or type(value.type) is not core.block_type
    return value.handle.data if fits and value.dtype.name == name else None


@cache
def _language() -> tuple[Any, Any, Any]:
    from triton.language import core
    from triton.runtime import interpreter

    return core, core.tensor, interpreter.TensorHandle


_constants: dict[tuple[Any, str], Any] = {}


def _constant(own: Any, number: Any, dtype: Any) -> Any:
    """Return a number as a scalar, which NumPy broadcasts."""
    key = number, dtype.name
    if key not in _constants:
        _constants[key] = own.scalar_constant(number, dtype)
    return _constants[key]


_common_sizes: dict[tuple[int, int], list[int] | None] = {}  # by the identities of shapes


def _common_type(left: Any, right: Any) -> Any:
    """Return the type of results; None if Triton must convert operands, or complain."""
    names = left.dtype.name, right.dtype.name
    if names[0] == names[1] or names[::-1] in WIDER:
        return _common_shape(left, right, left.dtype)
    return _common_shape(left, right, right.dtype) if names in WIDER else None


def _common_shape(left: Any, right: Any, dtype: Any) -> Any:
    """Return the type of results with these elements; None if ranks or sizes do not fit."""
    block_type = _language()[0].block_type
    one, two = left.type, right.type
    if left.shape is right.shape or type(two) is not block_type:
        return one if one.scalar is dtype else one.with_element_ty(dtype)
    if type(one) is not block_type:
        return block_type(dtype, two.shape)
    key = id(left.shape), id(right.shape)
    if key not in _common_sizes:
        _common_sizes[key] = _broadcast(one.shape, two.shape)
    sizes = _common_sizes[key]
    return None if sizes is None else block_type(dtype, sizes)


def _broadcast(left: list[int], right: list[int]) -> list[int] | None:
    if len(left) != len(right):
        return None
    pairs = list(zip(left, right, strict=True))
    fits = all(a == b or 1 in (a, b) for a, b in pairs)
    return [max(pair) for pair in pairs] if fits else None
