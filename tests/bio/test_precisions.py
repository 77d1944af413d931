"""Language models, genomic models and DualBind in every precision, and in callers' settings."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mlff_triton import bio
from mlff_triton.testing.settings import random_states
from tests.support.caller_settings import check_caller_setting, in_all_caller_settings
from tests.support.changed_attributes import check_changed_attributes, check_unusual_attributes
from tests.support.language_models import NAMES, mask_of, randomize, tokens_of, valid
from tests.support.precisions import (
    check_setting,
    in_all_settings_once_in_float16,
    in_settings_without_autocast,
)

Case = tuple[nn.Module, Callable[[nn.Module], Any]]


@cache
def transformer(name: str, device: str) -> Case:
    huggingface = pytest.importorskip("tests.support.huggingface")
    model = huggingface.make(name, device, torch.float32)
    mask = mask_of("padding right", device)
    padding, has_mask = model.config.pad_token_id, name.startswith("Esm")
    ids = tokens_of("padding right", device, padding, has_mask)
    return model, lambda model: valid(model(ids, attention_mask=mask).logits, mask)


@cache
def fair_esm(device: str) -> Case:
    esm2 = pytest.importorskip("esm.model.esm2", reason="fair-esm is not installed")
    model = randomize(esm2.ESM2(2, 64, 4, "ESM-1b"), device, torch.float32)
    ids = tokens_of("padding right", device, 1, masked=True)

    def call(model: nn.Module) -> list[Tensor]:
        found = model(ids, repr_layers=[0, 2])
        return [valid(x, ids != 1) for x in (found["logits"], *found["representations"].values())]

    return model, call


@cache
def antiberty(device: str) -> Case:
    from tests.support import antiberty as source

    huggingface = pytest.importorskip("transformers")
    config, weights = source.state()
    names = ("vocab_size", "hidden_size", "num_attention_heads", "intermediate_size")
    names += ("layer_norm_eps", "max_position_embeddings", "pad_token_id")
    chosen = {name: config[name] for name in names} | {"num_hidden_layers": 2}
    model = huggingface.BertForMaskedLM(huggingface.BertConfig(**chosen)).eval()
    model.load_state_dict({name: weights[name] for name in model.state_dict()})
    ids = torch.tensor([[2, *(source.TOKENS[a] for a in "EVQLVESGGGLVQPG"), 3]], device=device)
    return model.to(device).requires_grad_(False), lambda model: model(ids).logits


@cache
def enformer(device: str) -> Case:
    from tests.support import enformer as source  # skips the test if the package is missing

    bases = source.bases(2, 64).to(device)
    return source.make_model().to(device), lambda model: model(bases)


@cache
def alpha_genome(device: str) -> Case:
    from tests.support import alpha_genome as source  # skips the test if the package is missing

    given = {name: x.to(device) for name, x in source.sequences().items()}
    return source.make_model().to(device), lambda model: model(**given, heads=("atac", "chip_tf"))


@cache
def dual_bind(device: str) -> Case:
    from tests.bio.models.dualbind import test_dualbind as source

    pockets = source.to(source.make_pockets(2), device)
    return source.make_model().to(device), lambda model: model(**pockets)


CASES: dict[str, Callable[[str], Case]] = {
    **{name: lambda device, name=name: transformer(name, device) for name in NAMES},
    "ESM-2 of fair-esm": fair_esm,
    "AntiBERTy": antiberty,
    "Enformer": enformer,
    "AlphaGenome": alpha_genome,
    "DualBind": dual_bind,
}


SMALL = [name for name in CASES if name != "AntiBERTy"]  # which is a large BERT


@in_settings_without_autocast
@pytest.mark.parametrize("name", [name for name in CASES if name != "AlphaGenome"])
def test_outputs_are_as_exact_as_those_of_the_model(name, setting, device):
    check_setting(*CASES[name](device), setting)


@in_all_settings_once_in_float16
def test_outputs_of_alpha_genome_whose_policy_may_be_that_of_autocast(setting, device):
    check_setting(*alpha_genome(device), setting)


def slow_for(*names: str) -> pytest.MarkDecorator:
    """Parametrize over small models, of which some take seconds for each test."""
    marks = {name: [pytest.mark.slow] for name in names}
    return pytest.mark.parametrize(
        "name", [pytest.param(each, marks=marks.get(each, ())) for each in SMALL]
    )


@in_all_caller_settings
@slow_for("AlphaGenome")
def test_outputs_follow_settings_of_the_caller_as_the_model_does(name, setting, device):
    check_caller_setting(*CASES[name](device), setting, "triton" if device == "cuda" else "torch")


@pytest.mark.parametrize("check", [check_changed_attributes, check_unusual_attributes])
@slow_for("Enformer", "AlphaGenome", "DualBind")
def test_attributes_are_those_of_the_model(name, check):
    check(*CASES[name]("cpu"))


@pytest.mark.parametrize("name", CASES)
def test_acceleration_draws_from_no_random_stream(name, device):
    model, call = CASES[name](device)
    before = random_states()
    with torch.inference_mode(), bio.accelerated(model, backend="torch"):
        call(model)
    assert all(map(torch.equal, random_states(), before))
