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
def bfloat16_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the interpreter multiply bfloat16, whose bits it takes for integers."""
    if torch.cuda.is_available():
        return
    from triton.language import bfloat16, float32
    from triton.runtime import interpreter

    builder = type(interpreter.interpreter_builder)
    multiply = builder.create_dot

    def decoded(x: Any) -> Any:
        if x.dtype.scalar is not bfloat16:
            return x
        return interpreter.TensorHandle((x.data.astype(np.uint32) << 16).view(np.float32), float32)

    def multiply_decoded(self: Any, a: Any, b: Any, *others: Any) -> Any:
        return multiply(self, decoded(a), decoded(b), *others)

    monkeypatch.setattr(builder, "create_dot", multiply_decoded)
