"""Compilation of the kernels of a model before their first launch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mlff_triton.bio.core import first_launch
from mlff_triton.bio.core.first_launch import before_first_launch
from mlff_triton.kernels.common import compilation


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Collect the functions whose kernels are compiled."""
    found: list[object] = []
    monkeypatch.setattr(compilation, "compile_ahead", found.append)
    monkeypatch.setattr(first_launch, "_KEYS", type(first_launch._KEYS)())
    monkeypatch.setattr(first_launch, "is_capturing", lambda x: x.captured)
    return found


def tensor(device: str, *, captured: bool = False) -> Any:
    return SimpleNamespace(is_cuda=device != "cpu", device=torch.device(device), captured=captured)


def test_kernels_are_compiled_once_per_key_and_device(launches):
    for key, device in (("a", "cuda:0"), ("a", "cuda:0"), ("b", "cuda:0"), ("a", "cuda:1")):
        before_first_launch("triton", key, tensor(device), key)
    assert launches == ["a", "b", "a"]


def test_nothing_is_compiled_without_kernels(launches):
    before_first_launch("torch", "a", tensor("cuda:0"), "a")
    before_first_launch(None, "a", tensor("cuda:0"), "a")
    before_first_launch("triton", "a", tensor("cpu"), "a")
    before_first_launch("triton", "a", tensor("cuda:0", captured=True), "a")
    assert not launches
    before_first_launch("triton", "a", tensor("cuda:0"), "a")
    assert launches == ["a"]


def test_keys_used_longest_ago_are_forgotten(launches, monkeypatch):
    monkeypatch.setattr(first_launch, "_MOST_KEYS", 2)
    for key in ("a", "b", "a", "c", "a", "b"):
        before_first_launch("triton", key, tensor("cuda:0"), key)
    assert launches == ["a", "b", "c", "b"]
