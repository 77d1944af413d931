"""First calls, before which the kernels of an encoder are compiled side by side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from triton.runtime import interpreter

from mlff_triton import bio
from mlff_triton.bio.core import first_launch
from mlff_triton.testing import assert_within
from tests.support.language_models import mask_of, tokens_of

RUNNER = "mlff_triton.bio.models.encoders.batch_runner.before_first_launch"


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch, device: str) -> list[Any]:
    """Let launches be the first ones, and collect their keys."""
    found: list[Any] = []
    original = first_launch.before_first_launch
    monkeypatch.setattr(first_launch, "_KEYS", type(first_launch._KEYS)())

    def launch(backend: str, key: Any, x: torch.Tensor, run: Callable[[], object]) -> None:
        found.append(key)
        if device == "cuda":
            original(backend, key, x, run)
            return
        with pytest.MonkeyPatch.context() as patch:  # as nothing is compiled by the interpreter
            patch.setattr(interpreter.InterpretedFunction, "run", lambda *_, **__: None)
            run()

    monkeypatch.setattr(RUNNER, launch)
    return found


@torch.inference_mode()
def test_the_first_call_is_as_exact_as_others(model: nn.Module, device: str, keys: list[Any]):
    config = model.config
    masked = getattr(config, "mask_token_id", None) is not None
    tokens = tokens_of("padding right", device, config.pad_token_id, masked)
    given = {"input_ids": tokens, "attention_mask": mask_of("padding right", device)}
    kept = {name: x.clone() for name, x in given.items()}
    expected = model(**given).logits
    with bio.accelerated(model, backend="triton"):
        found = model(**given).logits
        assert torch.equal(model(**given).logits, found)
    assert all(torch.equal(x, kept[name]) for name, x in given.items())
    is_token = given["attention_mask"].bool()
    assert_within(found[is_token], expected[is_token], 1e-4)
    assert keys


@torch.inference_mode()
def test_batches_of_similar_sizes_have_one_key(model: nn.Module, device: str, keys: list[Any]):
    with bio.accelerated(model, backend="triton"):
        for length in (9, 12, 15, 17):
            model(input_ids=torch.full((2, length), 6, device=device))
    assert keys[0] == keys[1] == keys[2] != keys[3]
