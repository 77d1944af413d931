"""All adapters of OpenFold3 in every precision, under autocast, and in settings of callers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

pytest.importorskip("openfold3.core.model.latent.pairformer", reason="openfold3 is not installed")

from tests.bio.models.openfold3 import (
    test_openfold3,
    test_openfold3_diffusion,
    test_openfold3_msa,
)
from tests.support.setting_tests import Case, SettingTests

pytestmark = pytest.mark.filterwarnings("ignore:CUDA is not available")

N = 9


def block(name: str, device: str) -> Case:
    model = test_openfold3.make(name, device)
    given, _ = test_openfold3.arguments(model, 1, N, device)
    return model, lambda model: model(*given)


def alignment(name: str, device: str) -> Case:
    (msa, z, mask, pairs), _ = test_openfold3_msa.arguments(5, 1, N, device)
    whole = torch.ones_like(mask)  # what is masked in an alignment differs
    return test_openfold3_msa.make(name, device), lambda model: model(msa, z, whole, pairs)


def score(device: str) -> Case:
    source = test_openfold3_diffusion.TestOpenFold3()
    given = source.arguments(N, 2, device)
    return source.make(device), lambda model: model(**given)


CASES: dict[str, Callable[[str], Case]] = {
    **{name: lambda device, name=name: block(name, device) for name in test_openfold3.BLOCKS},
    **{
        f"alignment, {name}": lambda device, name=name: alignment(name, device)
        for name in test_openfold3_msa.BLOCKS
    },
    "score network": score,
}


class TestOpenFold3(SettingTests):
    cases = CASES
