"""Fixtures for tests that run kernels: on a GPU if there is one, else under the interpreter."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.memory_bounds import check_memory

if not torch.cuda.is_available():
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        raise ImportError("tests cannot choose Triton's interpreter: Triton is imported already")
    os.environ["TRITON_INTERPRET"] = "1"  # read when kernels are defined


@pytest.fixture
def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(params=[torch.float32, torch.float64], ids=["float32", "float64"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill allocated tensors with NaN or huge integers, so that unwritten results stand out."""
    for owner, name in (
        (torch, "empty"),
        (torch, "empty_like"),
        (torch, "empty_strided"),
        (Tensor, "new_empty"),
        (Tensor, "new_empty_strided"),
    ):
        monkeypatch.setattr(owner, name, _poisoning(getattr(owner, name)))


@pytest.fixture(autouse=True)
def bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let kernels fail that read or write beyond their tensors, as a GPU may without a word."""
    check_memory(monkeypatch)


@pytest.fixture(autouse=True)
def loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow loaded values as loop bounds: Triton 3.6 converts them in a way NumPy 2.4 removed."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patch_and_index(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patch_and_index)


@pytest.fixture(autouse=True)
def unchecked_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the overflow checks of the interpreter, which computes each sum again in 64 bits."""
    from triton.runtime import interpreter

    builder = interpreter.interpreter_builder
    options = dataclasses.replace(builder.options, sanitize_overflow=False)
    monkeypatch.setattr(builder, "options", options)


def _poisoning(allocate: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def allocate_poisoned(*args: Any, **kwargs: Any) -> Tensor:
        tensor = allocate(*args, **kwargs)
        if tensor.is_floating_point():
            return tensor.fill_(torch.nan)
        if tensor.dtype is torch.bool or tensor.is_complex():
            return tensor
        return tensor.fill_(torch.iinfo(tensor.dtype).max)

    return allocate_poisoned
