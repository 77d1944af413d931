"""The transformer of tokens in the diffusion module of Boltz-2, compared with the package's own."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mlff_triton import bio
from tests.bio.models.structure.cases import (
    assert_as_exact,
    assert_close,
    assert_same_again,
    exact_results,
    randomize,
    results,
    token_mask,
)
from tests.kernels.pairs.conftest import bfloat16_arithmetic

__all__ = ["bfloat16_arithmetic"]

transformers = pytest.importorskip(
    "boltz.model.modules.transformersv2", reason="boltz is not installed"
)

pytestmark = pytest.mark.filterwarnings(
    "ignore:(User provided device_type of 'cuda'|CUDA is not available)"
)

CHANNELS, CONDITIONS, HEADS, LAYERS = 48, 32, 4, 3


def make(device: str = "cpu", **options: Any) -> nn.Module:
    kind = transformers.DiffusionTransformer
    return randomize(kind(LAYERS, HEADS, CHANNELS, CONDITIONS, **options)).to(device)


def arguments(batch: int, samples: int, n: int, device: str) -> tuple[Tensor, ...]:
    """Return tokens, conditions, biases and the mask of samples."""
    torch.manual_seed(n)
    given = (
        torch.randn(batch * samples, n, CHANNELS),
        torch.randn(batch * samples, n, CONDITIONS),
        torch.randn(batch, n, n, LAYERS * HEADS),
        token_mask(batch, n).repeat_interleave(samples, 0),
    )
    return tuple(x.to(device) for x in given)


def compare(
    model: nn.Module, size: tuple[int, int, int], device: str, **options: Any
) -> tuple[tuple[Tensor, ...], ...]:
    """Return results of the accelerated model, the original, and float64, which must be close."""
    given = arguments(*size, device)
    run = partial(model, multiplicity=size[1])
    exact, own = exact_results(model, run, given), results(run, given)
    with bio.accelerated(model, **options):
        found = results(run, given)
        assert [part.state for part in bio.report(model)] == ["fast"]
        assert_same_again(found, run, given, options.get("backend"))
    assert_close(found, own, exact, given[3:])
    return found, own, exact, given[3:]


@pytest.mark.parametrize("size", [(1, 1, 1), (2, 3, 17), (1, 2, 100)], ids=str)
@pytest.mark.parametrize("norm", [False, True])
def test_results_are_those_of_boltz(size, norm):
    compare(make(post_layer_norm=norm), size, "cpu", backend="torch")


def test_kernels_are_as_exact_as_boltz(device):
    assert_as_exact(*compare(make(device), (2, 2, 5), device, backend="triton"))


@pytest.mark.gpu
@pytest.mark.parametrize("size", [(1, 1, 1), (2, 3, 17), (1, 5, 300)], ids=str)
def test_results_on_a_gpu_are_as_exact_as_those_of_boltz(size):
    assert_as_exact(*compare(make("cuda"), size, "cuda"))


@pytest.mark.gpu
def test_half_precision_is_as_exact_as_autocast():
    model, given = make("cuda"), arguments(1, 2, 100, "cuda")
    run = partial(model, multiplicity=2)
    exact = exact_results(model, run, given)
    with torch.autocast("cuda", torch.bfloat16):
        own = results(run, given)
    with bio.accelerated(model, precision="bf16"):
        found = results(run, given)
    assert_as_exact(found, own, exact, given[3:], torch.bfloat16)


def test_layers_follow_autocast():
    model, given = make(), arguments(1, 2, 17, "cpu")
    run = partial(model, multiplicity=2)
    (own,) = results(run, given)
    with torch.autocast("cpu", torch.bfloat16), bio.accelerated(model, backend="torch"):
        (found,) = results(run, given)
        assert "bfloat16" in bio.report(model)[0].by
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, own, rtol=0.05, atol=0.1)


@pytest.mark.usefixtures("bfloat16_arithmetic")
def test_kernels_follow_autocast(device):
    model, given = make(device), arguments(1, 2, 5, device)
    run = partial(model, multiplicity=2)
    exact = exact_results(model, run, given)
    with torch.autocast(device, torch.bfloat16):
        own = results(run, given)
        with bio.accelerated(model, backend="triton"):
            found = results(run, given)
    assert_as_exact(found, own, exact, given[3:], torch.bfloat16)


def test_inputs_are_not_overwritten():
    model, given = make(), arguments(1, 1, 5, "cpu")
    before = [x.clone() for x in given]
    with bio.accelerated(model, backend="torch"):
        results(model, given)
    assert all(map(torch.equal, given, before))


def test_windows_of_atoms_run_the_original():
    model, given = make(), arguments(1, 1, 5, "cpu")
    run = partial(model, to_keys=lambda x: x)
    own = results(run, given)
    bio.accelerate(model, backend="torch")
    assert all(map(torch.equal, results(run, given), own))
    assert "keys are other tokens" in bio.report(model)[0].state


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"multiplicity": 2}, "number of samples"),
        ({"s": torch.randn(1, 4, CONDITIONS)}, "s does not have the size"),
        ({"mask": torch.full((1, 5), 0.5)}, "other than 0 and 1"),
        ({"bias": None}, "not float32"),
    ],
)
def test_other_inputs_are_refused(change, reason):
    model = make()
    given = dict(zip(("a", "s", "bias", "mask"), arguments(1, 1, 5, "cpu"), strict=True))
    bio.accelerate(model, backend="torch")
    assert model.forward.refusal(given) is None
    assert reason in model.forward.refusal(given | change)
