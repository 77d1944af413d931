"""A fixture that makes Triton's interpreter several times as fast, with the same results."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch

from tests.support.quick_operators import NUMBERS, keeps_type, quick_operators, quick_where

Replacement = tuple[object, str, object]  # owner, name and function

KEPT = NUMBERS | {"int1"}
CONVERTED = NUMBERS | {"fp16"}  # as NumPy does
BYTES = {"int1": 1, "fp32": 4, "fp64": 8} | {f"int{8 << k}": 1 << k for k in range(4)}


@pytest.fixture(autouse=True)
def quick_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what the interpreter computes anew for every operation, function call and launch."""
    make_quick(monkeypatch.setattr)


def make_quick(replace: Callable[[object, str, object], None]) -> None:
    """Replace functions of the interpreter by `replace(owner, name, function)`, without a GPU."""
    if not torch.cuda.is_available():
        for owner, name, function in _replacements():
            replace(owner, name, function)


@cache
def _replacements() -> list[Replacement]:
    return [
        *_known_types(),
        *_like_types(),
        _like_operands(),
        _like_choices(),
        _known_broadcasts(),
        *_known_functions(),
    ]


def _known_types() -> Iterator[Replacement]:
    """Keep types and constants that belong to a shape, and NumPy's type for an element type."""
    from triton.language import core
    from triton.runtime import interpreter

    numpy_dtype, make_block = interpreter._get_np_dtype, core.block_type.__init__
    dtype_of_numbers = cache(numpy_dtype)
    blocks: dict[int, Any] = {}  # a block for each identity of a shape

    def dtype_of(type_: Any) -> Any:
        scalar = type_.scalar
        return (numpy_dtype if scalar.is_ptr() else dtype_of_numbers)(scalar)

    def constants(*shape: int) -> tuple[Any, Any]:
        return core.tuple(map(core.constexpr, shape)), core.constexpr(math.prod(shape))

    of_scalars = constants()

    @cache
    def block_of(*shape: int) -> Any:
        block = core.block_type.__new__(core.block_type)
        make_block(block, core.int1, list(shape))
        block.prefix, block.constants = f"<{block.shape}, ", constants(*shape)
        return blocks.setdefault(id(block.shape), block)

    def initialize_block(block: Any, element_type: Any, shape: Any) -> None:
        known = blocks.get(id(shape))
        if known is None:
            shape = shape.value if isinstance(shape, core.constexpr) else shape
            known = block_of(*(n.value if isinstance(n, core.constexpr) else n for n in shape))
        block.element_ty, block.shape, block.numel = element_type, known.shape, known.numel
        block.prefix, block.constants = known.prefix, known.constants
        block.name = f"{known.prefix}{element_type}>"

    def initialize_tensor(tensor: Any, handle: Any, type_: Any) -> None:
        tensor.handle, tensor.type, tensor.dtype = handle, type_, type_.scalar
        tensor.shape, tensor.numel = type_.constants if type_.is_block() else of_scalars

    yield interpreter, "_get_np_dtype", dtype_of
    yield core.block_type, "__init__", initialize_block
    yield core.tensor, "__init__", initialize_tensor


def _like_types() -> Iterator[Replacement]:
    """Return values at once that need no conversion, and constants and arrays without a search."""
    from triton.language import core, semantic
    from triton.runtime import interpreter

    cast, equals, unwrap = (
        semantic.TritonSemantic.cast,
        core.dtype.__eq__,
        core._unwrap_if_constexpr,
    )
    to_tensor = semantic.TritonSemantic.to_tensor
    check_handle = interpreter.TensorHandle.__post_init__
    plain = {core.tensor, int, float, bool, str, core.dtype, core.block_type, type(None)}

    def cast_unlike(own: Any, tensor: Any, dtype: Any, *rounding: Any, **named: Any) -> Any:
        if tensor.dtype is dtype:
            return tensor
        is_plain = type(dtype) is core.dtype and rounding in ((), (None,)) and not named
        if is_plain and CONVERTED.issuperset((tensor.dtype.name, dtype.name)):
            data = tensor.handle.data.astype(interpreter._get_np_dtype(dtype))
            handle = interpreter.TensorHandle(data, dtype)
            return core.tensor(handle, tensor.type.with_element_ty(dtype))
        return cast(own, tensor, dtype, *rounding, **named)

    def is_equal(dtype: Any, other: Any) -> bool:
        return dtype is other or equals(dtype, other)

    def unwrap_constant(value: Any) -> Any:
        return value if type(value) in plain else unwrap(value)

    def initialize_handle(handle: Any, data: Any, dtype: Any, attr: Any = None) -> None:
        handle.data, handle.dtype, handle.attr = data, dtype, {} if attr is None else attr
        if data.itemsize > BYTES.get(dtype.name, 0):
            check_handle(handle)

    def to_tensor_unlike(own: Any, value: Any, *options: Any, **named: Any) -> Any:
        return value if type(value) is core.tensor else to_tensor(own, value, *options, **named)

    yield semantic.TritonSemantic, "cast", cast_unlike
    yield semantic.TritonSemantic, "to_tensor", to_tensor_unlike
    yield core.dtype, "__eq__", is_equal
    yield core, "_unwrap_if_constexpr", unwrap_constant
    yield interpreter.TensorHandle, "__init__", initialize_handle


def _like_operands() -> Replacement:
    """Return operands at once whose types an operation leaves alone.

    Integers and float32 or float64 keep their type in operations with their own type, and with
    numbers of Python that they can represent. NumPy broadcasts such a number on the right.
    """
    from triton.language import core, semantic

    check_types = semantic.TritonSemantic.binary_op_type_checking_impl
    make_constant = semantic.TritonSemantic.scalar_constant
    constants: dict[tuple[Any, str], Any] = {}

    def constant(own: Any, number: Any, like: Any) -> Any:
        key = number, like.dtype.name
        if key not in constants:
            constants[key] = make_constant(own, number, like.dtype)
        return constants[key]

    def check_unlike(own: Any, left: Any, right: Any, *options: Any, **named: Any) -> Any:
        if not isinstance(left, core.tensor):
            if isinstance(right, core.tensor) and keeps_type(right.dtype.name, left):
                return own.broadcast_impl_value(constant(own, left, right), right)
        elif not isinstance(right, core.tensor):
            if keeps_type(left.dtype.name, right):
                return left, constant(own, right, left)
        elif left.dtype.name == right.dtype.name and left.dtype.name in KEPT:
            return own.broadcast_impl_value(left, right)
        return check_types(own, left, right, *options, **named)

    return semantic.TritonSemantic, "binary_op_type_checking_impl", check_unlike


def _like_choices() -> Replacement:
    from triton.language import semantic

    return semantic.TritonSemantic, "where", quick_where(semantic.TritonSemantic.where)


def _known_broadcasts() -> Replacement:
    """Keep the shape that two operands have in common; tensors of one shape share its constants."""
    from triton.language import core, semantic

    broadcast = semantic.TritonSemantic.broadcast_impl_value
    known: dict[tuple[int, int], list[int]] = {}  # by the identities of both shapes

    def enlarge(tensor: Any, sizes: list[int], builder: Any) -> Any:
        block = core.block_type(tensor.dtype, sizes)
        if block.constants is tensor.type.constants:
            return tensor
        return core.tensor(builder.create_broadcast(tensor.handle, sizes), block)

    def broadcast_unlike(own: Any, left: Any, right: Any) -> Any:
        if left.shape is right.shape:
            return left, right
        if len(left.shape) != len(right.shape):
            return broadcast(own, left, right)
        key = id(left.shape), id(right.shape)
        if key not in known:
            both = broadcast(own, left, right)
            known[key] = [size.value for size in both[0].shape]
            return both
        return tuple(enlarge(each, known[key], own.builder) for each in (left, right))

    return semantic.TritonSemantic, "broadcast_impl_value", broadcast_unlike


def _known_functions() -> Iterator[Replacement]:
    """Keep the functions that replace Triton's language in a kernel and all that it calls.

    Each call of a function replaces them again, although the kernel or the first call has done so.
    """
    from triton.language import core, semantic
    from triton.runtime import interpreter

    call = interpreter.InterpretedFunction.__call__
    called: set[Any] = set()

    def call_replaced(function: Any, *args: Any, **kwargs: Any) -> Any:
        if function in called:
            return function.rewrite()(*args, **kwargs)
        called.add(function)
        return call(function, *args, **kwargs)

    def function_with(own: Any, builtin: Any) -> Any:
        within = inspect.unwrap(builtin)  # without the check that a kernel calls it

        def function(*args: Any, **kwargs: Any) -> Any:
            kwargs["_semantic"] = own
            return within(*args, **kwargs)

        return function

    @cache
    def functions(owner: Any, builder: Any) -> dict[str, Any]:
        own = semantic.TritonSemantic(builder)
        builtins = inspect.getmembers(owner, core.is_builtin)
        found = {name: function_with(own, builtin) for name, builtin in builtins}
        return found | quick_operators(own, found) if owner is core.tensor else found

    def replace_builtins(owner: Any, builder: Any, scope: Any) -> None:
        for name, function in functions(owner, builder).items():
            scope.set_attr(owner, name, function)

    yield interpreter.InterpretedFunction, "__call__", call_replaced
    yield interpreter, "_patch_builtin", replace_builtins
