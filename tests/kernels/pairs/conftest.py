from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from mlff_triton.kernels.common import early_launch


@pytest.fixture(params=["pointers", "descriptors"])
def described(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let kernels take pointers or, as on Hopper, descriptors."""
    if not torch.cuda.is_available():
        found = request.param == "descriptors"
        monkeypatch.setattr(early_launch, "launches_early", lambda _: found)


@pytest.fixture(autouse=True)
def bfloat16_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the interpreter multiply bfloat16, not its bits, and round to it, not truncate."""
    if torch.cuda.is_available():
        return
    from triton.language import bfloat16, float32
    from triton.runtime import interpreter

    builder = type(interpreter.interpreter_builder)
    multiply, cast = builder.create_dot, builder.cast_impl

    def decoded(x: Any) -> Any:
        if x.dtype.scalar is not bfloat16:
            return x
        return interpreter.TensorHandle((x.data.astype(np.uint32) << 16).view(np.float32), float32)

    def multiply_decoded(self: Any, a: Any, b: Any, *others: Any) -> Any:
        return multiply(self, decoded(a), decoded(b), *others)

    def cast_rounded(self: Any, x: Any, dtype: Any) -> Any:
        if x.dtype.scalar is not float32 or dtype.scalar is not bfloat16:
            return cast(self, x, dtype)
        rounded = torch.tensor(x.data).bfloat16().view(torch.int16).numpy().view(np.uint16)
        return interpreter.TensorHandle(rounded, bfloat16)

    monkeypatch.setattr(builder, "create_dot", multiply_decoded)
    monkeypatch.setattr(builder, "cast_impl", cast_rounded)
