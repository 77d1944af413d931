"""Accelerated ESM-2 of the package fair-esm against the original model."""

from __future__ import annotations

import copy
import io
from argparse import Namespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mlff_triton import bio
from mlff_triton.errors import UnsupportedModelError
from tests.support.language_models import (
    KEPT,
    assert_same,
    assert_same_first,
    attributes,
    randomize,
    tokens_of,
    valid,
)

esm2 = pytest.importorskip("esm.model.esm2", reason="fair-esm is not installed")

PADDING = 1
LAYERS = [0, 1, 2]


def make(device: str, dtype: torch.dtype = torch.float64, **options: Any) -> nn.Module:
    return randomize(esm2.ESM2(2, 64, 4, "ESM-1b", **options), device, dtype)


def tokens(mask: str, device: str) -> Tensor:
    return tokens_of(mask, device, PADDING, masked=True)


@torch.inference_mode()
def outputs(model: nn.Module, ids: Tensor) -> dict[Any, Tensor]:
    """Return logits and representations without those of padding."""
    found = model(ids, repr_layers=LAYERS)
    mask = ids != PADDING
    return {"logits": valid(found["logits"], mask)} | {
        layer: valid(found["representations"][layer], mask) for layer in LAYERS
    }


def check(model: nn.Module, ids: Tensor, agreement: str, **options: Any) -> None:
    """Compare the accelerated model, called twice, and then the restored one with the original."""
    expected = outputs(model, ids)
    with bio.accelerated(model, **options):
        found, again = outputs(model, ids), outputs(model, ids)
    for name, values in expected.items():
        assert_same(found[name], values, agreement)
        assert_same(again[name], values, agreement)
    if agreement != "fp16":  # there is no error to compare with: fair-esm fails in float16
        assert_same_first(found["logits"], expected["logits"])
    assert all(torch.equal(values, expected[n]) for n, values in outputs(model, ids).items())


@pytest.mark.parametrize("token_dropout", [True, False])
@pytest.mark.parametrize("mask", KEPT)
def test_outputs_are_those_of_the_model(mask, token_dropout, device):
    model = make(device, token_dropout=token_dropout)
    check(model, tokens(mask, device), "fp64", backend="torch")


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_precisions_in_pytorch(precision, device):
    model = make(device, torch.float32)
    expected = outputs(model, ids := tokens("padding right", device))["logits"]
    with bio.accelerated(model, precision=precision, backend="torch"):
        assert_same(outputs(model, ids)["logits"], expected, precision)


@pytest.mark.parametrize(
    ("mask", "precision"),
    [
        ("no mask", "fp16"),
        ("padding right", "fp32"),
        ("padding left", "fp16"),
        ("one token", "fp32"),
    ],
)
def test_kernels(mask, precision, device):
    model = make(device, torch.float32)
    ids = tokens(mask, device)
    check(model, ids, precision, precision=precision, backend="triton")


@pytest.mark.parametrize(
    ("layers", "backend"),
    [
        ([], "torch"),
        ([2], "torch"),
        ((0, 2), "torch"),
        ([99], "torch"),
        ([], "triton"),
        ({0, 1, 2}, "triton"),
    ],
)
def test_layers_that_are_asked_for(layers, backend, device):
    model = make(device, torch.float32)
    ids = tokens("padding right", device)
    kept = ids != PADDING
    with torch.inference_mode():
        expected = model(ids, layers)
        with bio.accelerated(model, backend=backend):
            found = model(ids, layers)
    assert found.keys() == expected.keys()
    assert found["representations"].keys() == expected["representations"].keys()
    for layer, values in expected["representations"].items():
        assert_same(found["representations"][layer][kept], values[kept], "fp32")


@pytest.mark.parametrize("asked", ["need_head_weights", "return_contacts"])
def test_attentions_and_contacts_fall_back(asked, device):
    model = make(device, torch.float32)
    ids = tokens("no mask", device)
    with torch.inference_mode():
        expected = model(ids, **{asked: True})
        bio.accelerate(model, backend="torch")
        with pytest.warns(bio.FallbackWarning, match=f"{asked} is not supported") as caught:
            found = model(ids, **{asked: True})
        assert found.keys() == expected.keys()
        assert torch.equal(found["attentions"], expected["attentions"])
        if asked == "return_contacts":
            # The same fallback gives no second warning.
            assert torch.equal(model.predict_contacts(ids), expected["contacts"])
        assert_same(model(ids)["logits"], expected["logits"], "fp32")
    assert len(caught) == 1


def test_restore_copies_and_files(device):
    model = make(device, torch.float32)
    ids, names = tokens("padding right", device), list(model.state_dict())
    expected = outputs(model, ids)["logits"]
    before = attributes(model)  # includes the angles that rotary embeddings cache
    bio.accelerate(model, backend="torch")
    found = outputs(model, ids)["logits"]
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for twin in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert torch.equal(outputs(twin, ids)["logits"], found)
        assert [part.module for part in bio.report(twin)] == ["ESM2"]
    assert list(model.state_dict()) == names
    bio.restore(model)
    assert attributes(model) == before
    assert torch.equal(outputs(model, ids)["logits"], expected)


def test_changes_are_noticed(device):
    model = make(device, torch.float32)
    ids = tokens("padding right", device)
    twin = copy.deepcopy(bio.accelerate(model, backend="torch"))
    outputs(model, ids)
    for parameter in model.parameters():
        parameter.mul_(0.9)
    found = outputs(model, ids)["logits"]
    assert_same(found, outputs(bio.restore(copy.deepcopy(model)), ids)["logits"], "fp32")
    twin.load_state_dict(model.state_dict())
    assert torch.equal(outputs(twin, ids)["logits"], found)


@pytest.mark.filterwarnings("ignore::mlff_triton.bio.FallbackWarning")
def test_tokens_that_do_not_exist():
    model = make("cpu")
    ids = tokens("no mask", "cpu")
    bio.accelerate(model, backend="torch")
    for wrong in (-1, 33):
        ids[1, 2] = wrong
        with torch.inference_mode(), pytest.raises(IndexError):
            model(ids)


def test_esm_1b_is_refused():
    """Its embeddings differ from those of ESM-2."""
    from esm.data import Alphabet
    from esm.model.esm1 import ProteinBertModel

    args = {"arch": "roberta_large", "layers": 1, "embed_dim": 64, "ffn_embed_dim": 128}
    args |= {"attention_heads": 4, "max_positions": 40, "emb_layer_norm_before": True}
    args |= {"token_dropout": True, "final_bias": True, "logit_bias": True}
    model = ProteinBertModel(Namespace(**args), Alphabet.from_architecture("ESM-1b"))
    with pytest.raises(UnsupportedModelError, match="fair-esm"):
        bio.accelerate(model, backend="torch")
