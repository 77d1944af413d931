"""The score network of Boltz-1, compared with the package's own."""

from __future__ import annotations

import gc
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.bio.boltz_features import protein_features
from mlff_triton import bio
from tests.bio.models.structure.cases import (
    assert_close,
    assert_same_again,
    exact_results,
    randomize,
    results,
)

diffusion = pytest.importorskip(
    "boltz.model.modules.diffusion", reason="boltz or einx is not installed"
)

pytestmark = pytest.mark.filterwarnings(
    "ignore:(User provided device_type of 'cuda'|CUDA is not available)"
)

TOKENS, PAIRS, ATOMS = 24, 16, 32
SIZES = {"atom_encoder_depth": 2, "token_transformer_depth": 2, "atom_decoder_depth": 1}


def make(device: str = "cpu", **options: Any) -> nn.Module:
    made = diffusion.DiffusionModule(
        TOKENS,
        PAIRS,
        ATOMS,
        PAIRS,
        dim_fourier=16,
        token_transformer_heads=4,
        atom_feature_dim=389,
        **SIZES,
        **options,
    )
    return randomize(made).to(device)


def inputs(model: nn.Module, n: int, samples: int) -> tuple[Tensor, ...]:
    """Return inputs of a step: tokens, pairs, positions, noise levels, and relative positions."""
    torch.manual_seed(n)
    device = next(model.parameters()).device
    atoms = protein_features(n, 1, "cpu")["ref_pos"].shape[1]
    given = (
        torch.randn(1, n, model.single_conditioner.norm_single.weight.numel() - TOKENS),
        torch.randn(1, n, TOKENS),
        torch.randn(1, n, n, PAIRS),
        torch.randn(samples, atoms, 3),
        torch.randn(samples),
        torch.randn(1, n, n, PAIRS),
    )
    return tuple(x.to(device) for x in given)


def sampler(model: nn.Module, n: int, samples: int, steps: int = 4) -> Any:
    """Return a function that takes steps with a cache as the sampler does."""

    def run(s_inputs: Tensor, s_trunk: Tensor, z: Tensor, r: Tensor, t: Tensor, p: Tensor) -> Any:
        features = protein_features(n, 1, r.device)
        for name, x in features.items():
            features[name] = x.to(r.dtype) if x.is_floating_point() else x
        cache: dict[str, Any] = {}
        found: list[Tensor] = []
        for step in range(steps):
            out = model(
                s_inputs=s_inputs,
                s_trunk=s_trunk,
                z_trunk=z,
                r_noisy=r + step,
                times=t - step,
                relative_position_encoding=p,
                feats=features,
                multiplicity=samples,
                model_cache=cache,
            )
            found += [out["r_update"], out["token_a"]]
        return tuple(found)

    return run


def compare(model: nn.Module, n: int, samples: int, **options: Any) -> Any:
    given, run = inputs(model, n, samples), sampler(model, n, samples)
    truth, own = exact_results(model, run, given), results(run, given)
    with bio.accelerated(model, **options):
        found = results(run, given)
        assert_same_again(found, run, given, options.get("backend"))
        assert [part.state for part in bio.report(model)] == ["fast"]
    return found, own, truth, tuple(torch.ones(x.shape[:2]) for x in found)


@pytest.mark.parametrize(("n", "samples"), [(1, 1), (17, 3), (40, 1)])
def test_steps_are_those_of_boltz(n, samples):
    assert_close(*compare(make(), n, samples, backend="torch"))


def test_kernels_agree_with_boltz(device):
    assert_close(*compare(make(device), 5, 2, backend="triton"))


@pytest.mark.gpu
@pytest.mark.parametrize(("n", "samples"), [(1, 1), (17, 3), (300, 1)])
def test_graphs_agree_with_boltz(n, samples):
    assert_close(*compare(make("cuda"), n, samples))


def test_layers_with_checkpoints_are_replaced():
    model = make(activation_checkpointing=True)
    own = compare(model, 5, 1, backend="torch")[1]
    bio.accelerate(model, backend="torch")
    layer = model.token_transformer.layers[0]
    layer.forward = partial(type(layer).forward, layer)
    with pytest.warns(bio.FallbackWarning, match="forward of its own"):
        found = results(sampler(model, 5, 1), inputs(model, 5, 1))
    assert all(map(torch.equal, found, own))


def test_a_run_is_forgotten_with_the_cache():
    model = make()
    bio.accelerate(model, backend="torch")
    results(sampler(model, 5, 1), inputs(model, 5, 1))
    gc.collect()
    assert model.forward._last._value is None


def test_samplers_without_a_cache_run_the_original():
    model = make()
    bio.accelerate(model, backend="torch")
    assert "use_inference_model_cache" in model.forward.refusal({"model_cache": None})
    assert model.forward.refusal({"model_cache": {}}) is None
    assert "conditioning is not that" in model.forward.refusal({"model_cache": {"other": 1}})
