"""A fixture that makes Triton's interpreter more than twice as fast, with the same results."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import pytest
import torch

_CALLED: set[Any] = set()  # functions that kernels have called


@pytest.fixture(autouse=True)
def quick_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what the interpreter computes anew for every operation and every function call.

    These are types and constants that belong to a shape, and NumPy's type for an element type. Each
    call of a function patches Triton's language again, although the kernel or the first call has
    done so.
    """
    if torch.cuda.is_available():
        return
    from triton.language import core
    from triton.runtime import interpreter

    functions = interpreter.InterpretedFunction
    call, numpy_dtype = functions.__call__, interpreter._get_np_dtype
    dtype_of_numbers = cache(numpy_dtype)
    make_block = core.block_type.__init__

    def call_patched(function: Any, *args: Any, **kwargs: Any) -> Any:
        if function in _CALLED:
            return function.rewrite()(*args, **kwargs)
        _CALLED.add(function)
        return call(function, *args, **kwargs)

    def dtype_of(type_: Any) -> Any:
        scalar = type_.scalar
        return (numpy_dtype if scalar.is_ptr() else dtype_of_numbers)(scalar)

    @cache
    def block_of(*shape: int) -> Any:
        block = core.block_type.__new__(core.block_type)
        make_block(block, core.int1, list(shape))
        return block

    def initialize_block(block: Any, element_type: Any, shape: Any) -> None:
        shape = shape.value if isinstance(shape, core.constexpr) else shape
        known = block_of(*(n.value if isinstance(n, core.constexpr) else n for n in shape))
        block.element_ty, block.shape, block.numel = element_type, known.shape, known.numel
        block.name = f"<{known.shape}, {element_type}>"

    @cache
    def constants(*shape: int) -> tuple[Any, Any]:
        return core.tuple(map(core.constexpr, shape)), core.constexpr(math.prod(shape))

    def initialize_tensor(tensor: Any, handle: Any, type_: Any) -> None:
        tensor.handle, tensor.type, tensor.dtype = handle, type_, type_.scalar
        tensor.shape, tensor.numel = constants(*(type_.shape if type_.is_block() else ()))

    monkeypatch.setattr(functions, "__call__", call_patched)
    monkeypatch.setattr(interpreter, "_get_np_dtype", dtype_of)
    monkeypatch.setattr(core.block_type, "__init__", initialize_block)
    monkeypatch.setattr(core.tensor, "__init__", initialize_tensor)
