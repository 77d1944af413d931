"""All adapters of Boltz in every precision, under autocast, and in settings of callers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("boltz.model.modules.diffusionv2", reason="boltz or einx is not installed")

from mlff_triton import bio
from tests.bio.models.boltz import (
    test_boltz,
    test_boltz1_score,
    test_boltz_conditioning,
    test_boltz_diffusion,
    test_boltz_msa,
    test_boltz_score,
    test_boltz_windows,
)
from tests.bio.models.structure.cases import results
from tests.support.setting_tests import Case, SettingTests

pytestmark = pytest.mark.filterwarnings(
    "ignore:(User provided device_type of 'cuda'|CUDA is not available)"
)

N = 9


def block(name: str, device: str) -> Case:
    model = test_boltz.make(name, device)
    given, _ = test_boltz.arguments(model, 1, N, device)
    return model, lambda model: model(*given)


def alignment(name: str, device: str) -> Case:
    given, _ = test_boltz_msa.arguments(5, 1, N, device)
    return test_boltz_msa.make(name, device), lambda model: model(*given)


def conditioning(device: str) -> Case:
    source = test_boltz_conditioning
    given = source.arguments(N, device, 32)

    def call(model: nn.Module) -> Any:
        """Return biases in float32, as they have the dtype of products."""
        q, c, keys, *biases = source.run(model, N)(*given)
        return q, c, keys, [bias.float() for bias in biases]

    return source.make(device, 32), call


def diffusion(device: str) -> Case:
    given = test_boltz_diffusion.arguments(1, 2, N, device)
    return test_boltz_diffusion.make(device), lambda model: model(*given, multiplicity=2)


def windows(device: str) -> Case:
    given = test_boltz_windows.arguments(1, 2, 3, device)
    return test_boltz_windows.make(device), lambda model: test_boltz_windows.run(model, 2)(*given)


def score(device: str) -> Case:
    source, given = test_boltz_score, test_boltz_score.trunk((N,), device)
    noisy = source.noisy(given, 2)
    return source.make(device), lambda model: wide(source.run(model, given, 2)(*noisy))


def score_of_boltz_1(device: str) -> Case:
    """Return the steps of a sampler, the first one of which fills its cache."""
    model = test_boltz1_score.make(device)
    given = test_boltz1_score.inputs(model, N, 2)
    return model, lambda model: wide(test_boltz1_score.sampler(model, N, 2, 2)(*given))


def wide(outputs: Any) -> list[Tensor]:
    """Return the outputs of a step in float32, as they have the dtype of positions at least."""
    return [x.float() for x in (outputs if isinstance(outputs, tuple) else (outputs,))]


CASES: dict[str, Callable[[str], Case]] = {
    **{name: lambda device, name=name: block(name, device) for name in test_boltz.BLOCKS},
    "alignment of boltz-1": lambda device: alignment("trunk", device),
    "alignment of boltz-2": lambda device: alignment("trunkv2", device),
    "conditioning": conditioning,
    "diffusion transformer": diffusion,
    "transformer of atoms": windows,
    "score network": score,
    "score network of boltz-1": score_of_boltz_1,
}


class TestBoltz(SettingTests):
    cases = CASES


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("score")])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_steps_have_the_dtype_of_positions(name, precision):
    model, _ = TestBoltz.made(name, "cpu")
    if name == "score network":
        given = test_boltz_score.trunk((N,))
        step, noisy = test_boltz_score.run(model, given, 2), test_boltz_score.noisy(given, 2)
    else:
        step = test_boltz1_score.sampler(model, N, 2, 2)
        noisy = test_boltz1_score.inputs(model, N, 2)
    with bio.accelerated(model, backend="torch", precision=precision):
        assert {x.dtype for x in results(step, noisy)} == {torch.float32}
