"""All adapters of Protenix in every precision, under autocast, and in settings of callers."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from torch import nn

os.environ.setdefault("LAYERNORM_TYPE", "torch")  # else the package compiles a CUDA extension
pytest.importorskip("protenix.model.modules.pairformer", reason="protenix is not installed")

from tests.bio.structure import (
    test_protenix,
    test_protenix_alignment,
    test_protenix_diffusion,
)
from tests.kernels.pairs.conftest import bfloat16_arithmetic
from tests.support.caller_settings import (
    check_caller_setting,
    in_all_caller_settings,
)
from tests.support.changed_attributes import check_changed_attributes
from tests.support.precisions import check_setting, in_all_settings

__all__ = ["bfloat16_arithmetic"]

N = 9
Case = tuple[nn.Module, Callable[[nn.Module], Any]]


def block(name: str, device: str) -> Case:
    model = test_protenix.make(name, device)
    given, _ = test_protenix.arguments(model, 1, N, device)
    return model, lambda model: test_protenix.run(model)(*given)


def alignment(last: bool, device: str) -> Case:
    given = test_protenix_alignment.arguments(5, N, device)
    model = test_protenix_alignment.make(last, device)
    return model, lambda model: test_protenix_alignment.run(model)(*given)


def score(device: str) -> Case:
    source = test_protenix_diffusion.TestProtenix()
    given = source.arguments(N, 2, device)
    return source.make(device), lambda model: model(**given)


CASES: dict[str, Callable[[str], Case]] = {
    **{name: lambda device, name=name: block(name, device) for name in test_protenix.BLOCKS},
    "alignment": lambda device: alignment(False, device),
    "last alignment": lambda device: alignment(True, device),
    "score network": score,
}

cases = pytest.mark.parametrize("name", CASES)
made = cache(lambda name, device: CASES[name](device))


@cases
@in_all_settings
def test_every_setting_agrees_with_protenix(name, setting, device):
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
