"""All adapters of Protenix in every precision, under autocast, and in settings of callers."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

os.environ.setdefault("LAYERNORM_TYPE", "torch")  # else the package compiles a CUDA extension
pytest.importorskip("protenix.model.modules.pairformer", reason="protenix is not installed")

from tests.bio.models.protenix import (
    test_protenix,
    test_protenix_diffusion,
    test_protenix_msa,
)
from tests.support.setting_tests import Case, SettingTests

N = 9


def block(name: str, device: str) -> Case:
    model = test_protenix.make(name, device)
    given, _ = test_protenix.arguments(model, 1, N, device)
    return model, lambda model: test_protenix.run(model)(*given)


def alignment(last: bool, device: str) -> Case:
    given = test_protenix_msa.arguments(5, N, device)
    model = test_protenix_msa.make(last, device)
    return model, lambda model: test_protenix_msa.run(model)(*given)


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


class TestProtenix(SettingTests):
    cases = CASES
