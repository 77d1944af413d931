"""Most likely tokens of accelerated language models against the models' own logits."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mlff_triton import bio
from mlff_triton.bio.models.encoders.language_head import LanguageHead
from mlff_triton.errors import InputError
from tests.support.language_models import (
    LENGTH,
    MARGIN,
    NAMES,
    SEQUENCES,
    mask_of,
    randomize,
    tokens_of,
    valid,
)

SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 40,
}
ESM = {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32, "token_dropout": True}
OPTIONS: dict[str, dict[str, Any]] = {
    "EsmForMaskedLM": ESM | {"position_embedding_type": "rotary"},
    "EsmForMaskedLM, ESM-1b": ESM | {"emb_layer_norm_before": True},
    "BertForMaskedLM": {"vocab_size": 30},
    "BertForMaskedLM, many tokens": {"vocab_size": 300},
}
PADDING = {"Esm": 1, "Ber": 0, "fai": 1}  # tokens
HUGGING_FACE = list(OPTIONS)
MODELS = [*HUGGING_FACE, "fair-esm"]
TOLERANCES = {"fp64": 1e-5, "fp32": 1e-5, "fp16": 0.02}


def make(name: str, device: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    if name == "fair-esm":
        esm2 = pytest.importorskip("esm.model.esm2", reason="fair-esm is not installed")
        return randomize(esm2.ESM2(2, 64, 4, "ESM-1b"), device, dtype)
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.EsmConfig if name.startswith("Esm") else transformers.BertConfig
    kind = getattr(transformers, name.split(",")[0])
    return randomize(kind(config(**(SIZES | OPTIONS.get(name, ESM)))), device, dtype)


def inputs_of(name: str, mask: str, device: str) -> dict[str, Tensor]:
    """Make a batch, named as the arguments of `top_tokens`."""
    ids = tokens_of(mask, device, PADDING[name[:3]], masked="Bert" not in name)
    found = None if name == "fair-esm" else mask_of(mask, device)
    return {"input_ids": ids} if found is None else {"input_ids": ids, "attention_mask": found}


@torch.inference_mode()
def logits_of(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    return model(*inputs.values())["logits"]


@torch.inference_mode()
def top_of(model: nn.Module, inputs: dict[str, Tensor], **others: Any) -> bio.TopTokens:
    return bio.top_tokens(model, **inputs, **others)


def assert_top(found: bio.TopTokens, logits: Tensor, mask: Tensor | None, tolerance: float) -> None:
    """Compare with logits [B, L, V] wherever there is a token."""
    assert found.ids.dtype is torch.int64
    assert found.logits.dtype is logits.dtype
    assert found.ids.shape == found.logits.shape == logits.shape[:2]
    ids, top = valid(found.ids, mask), valid(found.logits, mask).double()
    logits = valid(logits, mask).double()
    best = logits.topk(2).values
    assert (top - best[:, 0]).abs().max() <= tolerance
    clear = best[:, 0] - best[:, 1] > max(MARGIN, 2 * tolerance)
    assert clear.double().mean() > 0.5
    assert torch.equal(ids[clear], logits.argmax(1)[clear])


def check(name: str, mask: str, device: str, agreement: str, **options: Any) -> None:
    """Compare two calls of the accelerated model with the original model's logits."""
    dtype = torch.float64 if agreement == "fp64" else torch.float32
    model, inputs = make(name, device, dtype), inputs_of(name, mask, device)
    logits = logits_of(model, inputs)
    with bio.accelerated(model, **options):
        found, again = top_of(model, inputs), top_of(model, inputs)
    assert len(found.ids.unique()) > 3
    for top in (found, again):
        assert_top(top, logits, mask_of(mask, device), TOLERANCES[agreement])


@pytest.mark.filterwarnings("ignore:.* begins with padding")
@pytest.mark.parametrize("mask", ["no mask", "padding right", "padding left", "one token"])
@pytest.mark.parametrize("name", MODELS)
def test_tokens_are_those_of_the_model(name, mask, device):
    check(name, mask, device, "fp64", backend="torch")


@pytest.mark.parametrize(
    ("name", "mask", "precision"),
    [
        ("EsmForMaskedLM", "no mask", "fp32"),
        ("EsmForMaskedLM", "padding right", "fp16"),
        ("BertForMaskedLM", "padding left", "fp32"),
        ("BertForMaskedLM, many tokens", "padding right", "fp32"),
        ("fair-esm", "padding right", "fp32"),
        ("fair-esm", "no mask", "fp16"),
    ],
)
def test_kernels_write_no_logits(name, mask, precision, device, monkeypatch):
    def refuse(*_: object) -> None:
        raise AssertionError("logits are written")

    monkeypatch.setattr(LanguageHead, "__call__", refuse)
    model, inputs = make(name, device), inputs_of(name, mask, device)
    logits = logits_of(model, inputs)
    bio.accelerate(model, precision=precision, backend="triton")
    assert_top(top_of(model, inputs), logits, mask_of(mask, device), TOLERANCES[precision])
    with pytest.raises(AssertionError, match="logits are written"):
        logits_of(model, inputs)


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_types_of_tokens_and_tuples(backend, device):
    model = make("BertForMaskedLM", device)
    inputs = inputs_of("BertForMaskedLM", "padding right", device)
    plain = logits_of(model, inputs)
    kinds = (torch.arange(LENGTH, device=device) % 2).expand(SEQUENCES, -1).contiguous()
    expected = logits_of(model, inputs | {"token_type_ids": kinds})
    assert (expected.argmax(-1) != plain.argmax(-1)).any()
    bio.accelerate(model, backend=backend)
    mask = inputs["attention_mask"]
    assert_top(top_of(model, inputs, token_type_ids=kinds), expected, mask, 1e-5)
    model.config.return_dict = False
    assert_top(top_of(model, inputs), plain, mask, 1e-5)


@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize("name", ["EsmForMaskedLM", "BertForMaskedLM", "fair-esm"])
def test_batches_of_nothing(name, backend, device):
    model = bio.accelerate(make(name, device), backend=backend)
    found = top_of(model, {"input_ids": torch.zeros(0, 5, dtype=torch.int64, device=device)})
    assert found.ids.shape == found.logits.shape == (0, 5)


@pytest.mark.parametrize("name", MODELS)
def test_what_waits_for_a_gpu_computes_as_it_is(name):
    model, inputs = make(name, "cpu"), inputs_of(name, "padding right", "cpu")
    logit, index = logits_of(model, inputs).max(-1)
    found = top_of(bio.accelerate(model), inputs)
    assert torch.equal(found.ids, index)
    assert torch.equal(found.logits, logit)


@pytest.mark.parametrize("name", MODELS)
def test_gradients_fall_back(name, device):
    model, inputs = make(name, device), inputs_of(name, "no mask", device)
    bio.accelerate(model.requires_grad_(True), backend="torch")
    with pytest.warns(bio.FallbackWarning, match="gradients are required") as caught:
        found = bio.top_tokens(model, **inputs)
    assert len(caught) == 1
    found.logits.sum().backward()
    assert next(model.parameters()).grad.any()
    logits = logits_of(bio.restore(model), inputs)
    assert_top(bio.TopTokens(*(t.detach() for t in found)), logits, None, 1e-5)


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("EsmForMaskedLM", ""),
        ("EsmForMaskedLM", "lm_head"),
        ("EsmForMaskedLM", "lm_head.decoder"),
        ("BertForMaskedLM", "cls"),
        ("BertForMaskedLM", "cls.predictions"),
        ("fair-esm", ""),
    ],
)
@pytest.mark.filterwarnings("ignore:.* a submodule has hooks")
def test_hooks_are_called(name, path, device):
    def turn(_: nn.Module, __: object, output: Any) -> Any:
        if isinstance(output, Tensor):
            return -output
        output["logits"] = -output["logits"]
        return output

    def hook(model: nn.Module) -> None:
        model.get_submodule(path).register_forward_hook(turn)

    check_changed(name, device, hook)


@pytest.mark.parametrize("subclassed", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_forwards_of_somebody_else_are_called(name, subclassed, device):
    def change(model: nn.Module) -> None:
        kind = type(model)

        def turned(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            found = kind.forward(self, *args, **kwargs)
            found["logits"] = -found["logits"]
            return found

        if subclassed:
            model.__class__ = type("Turned", (kind,), {"forward": turned})
        else:
            model.forward = partial(turned, model)

    check_changed(name, device, change)


def check_changed(name: str, device: str, change: Callable[[nn.Module], None]) -> None:
    """Change an accelerated model so that it prefers other tokens, and compare with a copy."""
    model, inputs = make(name, device), inputs_of(name, "no mask", device)
    change(twin := copy.deepcopy(model))
    expected = logits_of(twin, inputs)
    bio.accelerate(model, backend="torch")
    assert not torch.equal(top_of(model, inputs).ids, expected.argmax(-1))
    change(model)
    assert_top(top_of(model, inputs), expected, None, 1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_models_that_are_not_accelerated(name):
    with pytest.raises(InputError, match=r"not accelerated: call bio\.accelerate"):
        bio.top_tokens(make(name, "cpu"), **inputs_of(name, "no mask", "cpu"))


@pytest.mark.parametrize("name", ["EsmModel", "EsmForTokenClassification", "BertModel"])
def test_models_without_a_language_head(name):
    model = bio.accelerate(make(name, "cpu"), backend="torch")
    with pytest.raises(InputError, match=f"{name} has no supported language head"):
        bio.top_tokens(model, **inputs_of(name, "no mask", "cpu"))


def test_models_that_hold_a_language_model():
    """The outer model may do anything with the logits, so it is refused."""
    model = nn.ModuleDict({"model": make("EsmForMaskedLM", "cpu")})
    bio.accelerate(model, backend="torch")
    with pytest.raises(InputError, match="ModuleDict has no supported language head"):
        bio.top_tokens(model, torch.full((1, 5), 7))


@pytest.mark.parametrize("name", ["attention_mask", "token_type_ids", "position_ids"])
def test_fair_esm_takes_tokens_alone(name):
    model = bio.accelerate(make("fair-esm", "cpu"), backend="torch")
    ids = torch.full((1, 5), 7)
    with pytest.raises(InputError, match=f"omit {name}"):
        bio.top_tokens(model, ids, **{name: torch.ones_like(ids)})


@pytest.mark.parametrize("name", ["EsmForMaskedLM, ESM-1b", "BertForMaskedLM"])
def test_positions_fall_back(name, device):
    model, inputs = make(name, device), inputs_of(name, "no mask", device)
    inputs["position_ids"] = torch.arange(LENGTH, device=device).flip(0).expand(SEQUENCES, -1)
    with torch.inference_mode():
        expected = model(**inputs).logits
    bio.accelerate(model, backend="torch")
    with pytest.warns(bio.FallbackWarning, match="position_ids is not supported"):
        found = top_of(model, inputs)
    assert_top(found, expected, None, 1e-5)
