"""The conditioning of pairs and the biases of all layers in Boltz-2, compared with its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.bio.boltz_features import protein_features
from mlff_triton import bio
from mlff_triton.bio.models.structure.diffusion import layered_biases
from tests.bio.models.structure.cases import (
    assert_as_exact,
    assert_close,
    assert_same_again,
    exact_results,
    randomize,
    results,
    results_under_autocast,
)
from tests.kernels.pairs.conftest import bfloat16_arithmetic

__all__ = ["bfloat16_arithmetic"]

conditioning = pytest.importorskip(
    "boltz.model.modules.diffusion_conditioning", reason="boltz is not installed"
)

pytestmark = pytest.mark.filterwarnings(
    "ignore:(User provided device_type of 'cuda'|CUDA is not available)"
)

TOKENS, PAIRS, ATOMS, ATOM_PAIRS = 24, 128, 32, 16
SIZES = {"atom_encoder_depth": 2, "token_transformer_depth": 3, "atom_decoder_depth": 1}


def make(device: str = "cpu", pairs: int = PAIRS) -> nn.Module:
    sizes = TOKENS, pairs, ATOMS, ATOM_PAIRS
    made = conditioning.DiffusionConditioning(*sizes, atom_feature_dim=388, **SIZES)
    for part in made.modules():  # the package's shifts start as zeros
        if isinstance(part, nn.LayerNorm):
            part.bias.data.normal_()
    return randomize(made).to(device)


def arguments(n: int, device: str, pairs: int = PAIRS) -> tuple[Tensor, ...]:
    """Return tokens, pairs and relative positions."""
    torch.manual_seed(n)
    given = torch.randn(1, n, TOKENS), *torch.randn(2, 1, n, n, pairs)
    return tuple(x.to(device) for x in given)


def run(model: nn.Module, n: int) -> Callable[..., Any]:
    """Return a function of the `arguments`, without the function that finds keys."""
    features = protein_features(n, 1, next(model.parameters()).device)

    def forward(*given: Tensor) -> tuple[Tensor, ...]:
        own = {
            name: x.to(given[0].dtype) if x.is_floating_point() else x
            for name, x in features.items()
        }
        q, c, to_keys, *biases = model(*given, own)
        return q, c, to_keys(q), *biases

    return forward


def compare(model: nn.Module, n: int, device: str, **options: Any) -> Any:
    """Return results of the accelerated model, the original, and float64, which must be close."""
    given, step = arguments(n, device), run(model, n)
    exact, own = exact_results(model, step, given), results(step, given)
    before = [x.clone() for x in given]
    with bio.accelerated(model, **options):
        found = results(step, given)
        assert [part.state for part in bio.report(model)] == ["fast"]
        assert_same_again(found, step, given, options.get("backend"))
    assert all(map(torch.equal, given, before))
    masks = tuple(torch.ones_like(x[..., 0]) for x in exact)
    assert_close(found, own, exact, masks)
    return found, own, exact, masks


@pytest.mark.parametrize("n", [1, 17])
def test_results_are_those_of_boltz(n):
    compare(make(), n, "cpu", backend="torch")


def test_kernels_are_as_exact_as_boltz(device):
    assert_as_exact(*compare(make(device), 5, device, backend="triton"))


@pytest.mark.usefixtures("bfloat16_arithmetic")
def test_kernels_follow_autocast(device):
    model, given = make(device), arguments(5, device)
    step = run(model, 5)
    exact = exact_results(model, step, given)
    found, own = results_under_autocast(model, step, given, device)
    masks = tuple(torch.ones_like(x[..., 0]) for x in exact)
    assert_as_exact(found, own, exact, masks, torch.bfloat16)


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_biases_of_tokens_lie_as_attention_reads_them(backend, device):
    """Of a single complex, they are not copied."""
    model = bio.accelerate(make(device), backend=backend)
    *_, biases = results(run(model, 3), arguments(3, device))
    layers = layered_biases(biases, SIZES["token_transformer_depth"], biases.dtype)
    assert (layers.data_ptr() == biases.data_ptr()) == (backend == "triton")


def test_other_inputs_are_refused():
    model, names = make(), ("s_trunk", "z_trunk", "relative_position_encoding")
    given: dict[str, Any] = dict(zip(names, arguments(5, "cpu"), strict=True))
    bio.accelerate(model, backend="torch")
    refusal = model.forward.refusal
    assert refusal(given) is None
    assert "not tensors" in refusal(given | {"s_trunk": None})
    assert "[B, N, N, C]" in refusal(given | {"z_trunk": given["z_trunk"][:, 1:]})
    assert "[B, N, N, C]" in refusal(given | {names[2]: given[names[2]][:, :, 1:]})
    assert "empty" in refusal({name: x[:0] for name, x in given.items()})
    assert "not float32" in model.double().forward.refusal(given)


def test_pairs_of_too_many_channels_run_the_original(device):
    model = bio.accelerate(make(device, pairs=520), backend="triton")
    with pytest.warns(bio.FallbackWarning, match="520 channels"):
        results(run(model, 3), arguments(3, device, pairs=520))


def test_modules_with_other_parts_are_left_alone():
    model = make()
    model.token_trans_proj_z[1] = nn.Linear(PAIRS, 8)
    with pytest.warns(bio.PartsWarning, match="only parts of DiffusionConditioning"):
        bio.accelerate(model, backend="torch")
    assert {part.module for part in bio.report(model)} == {"LayerNorm"}
