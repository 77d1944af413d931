"""All adapters of OpenFold3 in every precision, under autocast, and in settings of callers."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("openfold3.core.model.latent.pairformer", reason="openfold3 is not installed")

from tests.bio.structure import (
    test_openfold3,
    test_openfold3_alignment,
    test_openfold3_diffusion,
)
from tests.kernels.pairs.conftest import bfloat16_arithmetic
from tests.support.caller_settings import (
    check_caller_setting,
    in_all_caller_settings,
)
from tests.support.changed_attributes import check_changed_attributes
from tests.support.precisions import check_setting, in_all_settings

__all__ = ["bfloat16_arithmetic"]

pytestmark = pytest.mark.filterwarnings("ignore:CUDA is not available")

N = 9
Case = tuple[nn.Module, Callable[[nn.Module], Any]]


def block(name: str, device: str) -> Case:
    model = test_openfold3.make(name, device)
    given, _ = test_openfold3.arguments(model, 1, N, device)
    return model, lambda model: model(*given)


def alignment(name: str, device: str) -> Case:
    (msa, z, mask, pairs), _ = test_openfold3_alignment.arguments(5, 1, N, device)
    whole = torch.ones_like(mask)  # what is masked in an alignment differs
    return test_openfold3_alignment.make(name, device), lambda model: model(msa, z, whole, pairs)


def score(device: str) -> Case:
    source = test_openfold3_diffusion.TestOpenFold3()
    given = source.arguments(N, 2, device)
    return source.make(device), lambda model: model(**given)


CASES: dict[str, Callable[[str], Case]] = {
    **{name: lambda device, name=name: block(name, device) for name in test_openfold3.BLOCKS},
    **{
        f"alignment, {name}": lambda device, name=name: alignment(name, device)
        for name in test_openfold3_alignment.BLOCKS
    },
    "score network": score,
}

cases = pytest.mark.parametrize("name", CASES)
made = cache(lambda name, device: CASES[name](device))


@cases
@in_all_settings
def test_every_setting_agrees_with_openfold3(name, setting, device):
    check_setting(*made(name, device), setting)


@cases
@in_all_caller_settings
def test_settings_of_callers_are_followed(name, setting):
    check_caller_setting(*made(name, "cpu"), setting, "torch")


@cases
def test_changed_attributes_are_noticed(name):
    check_changed_attributes(*made(name, "cpu"))


@pytest.mark.gpu
@cases
@in_all_caller_settings
def test_settings_of_callers_are_followed_by_kernels(name, setting):
    check_caller_setting(*made(name, "cuda"), setting, "triton")
