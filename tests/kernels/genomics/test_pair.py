"""Operators on pairs of bins, compared with their references in float64."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor

from mlff_triton.kernels.genomics.pair_maxima import pair_maxima
from mlff_triton.kernels.types.convolution import Activation
from mlff_triton.kernels.types.pair_weights import PairBiases, PairContacts, PairMLP
from mlff_triton.testing import assert_within
from tests.kernels.genomics.rows import halves

BOUNDS = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}  # error relative to the largest output
HALF = torch.half  # stands for the half precision that is tested
sizes = pytest.mark.parametrize("size", [(1, 1), (2, 5), (1, 33)], ids=str)  # B, P
C, H, LEVELS, EPS = 16, 4, 8, 1e-5


def random(*shape: int, half: bool = True, scale: float = 1.0) -> Tensor:
    """Return random values, exact in all half precisions; float32 unless ``half``."""
    x = (scale * torch.randn(shape)).bfloat16()
    return x.to(HALF) if half else x.float()


def moved(value: Any, device: str, halves: torch.dtype, floats: torch.dtype) -> Any:
    """Move tensors, those of half precision and those of float32 in other dtypes."""
    if isinstance(value, Tensor):
        return value.to(device, {HALF: halves, torch.float32: floats}.get(value.dtype, value.dtype))
    if isinstance(value, tuple):
        parts = [moved(part, device, halves, floats) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value


def assert_matches(name: str, device: str, half: torch.dtype, *given: Any) -> None:
    """Compare an operator with its reference."""
    package = "mlff_triton.kernels.genomics."
    kernel, reference = (
        getattr(import_module(f"{package}{folder}{name}"), name) for folder in ("", "reference.")
    )
    exact = reference(*(moved(x, "cpu", torch.float64, torch.float64) for x in given))
    found = kernel(*(moved(x, device, half, torch.float32) for x in given))
    found, exact = ((x,) if isinstance(x, Tensor) else x for x in (found, exact))
    for part, wanted in zip(found, exact, strict=True):
        assert (part is None) == (wanted is None)
        if wanted is not None:
            assert_within(part.cpu(), wanted, BOUNDS[half])


@halves
@pytest.mark.parametrize(("heads", "dim", "value_dim"), [(3, 16, 24), (8, 128, 192), (1, 12, 8)])
def test_attention_inputs(heads, dim, value_dim, half, device):
    x = random(2, 19, heads * dim + dim + value_dim, scale=2.0) + 1
    norms = [(random(n, half=False), random(n, half=False), EPS) for n in (dim, dim, value_dim)]
    angle = 3 * torch.rand(19, dim // 2)
    assert_matches("attention_inputs", device, half, x, *norms, angle.cos(), angle.sin())


@halves
@pytest.mark.parametrize("channels", [16, 50])
def test_pool(channels, half, device):
    shift, weight, bias = (random(channels) for _ in range(3))
    given = random(2, 3 * 16, channels), shift, weight, bias, EPS, 16
    assert_matches("pair_pool", device, half, *given)


@halves
@pytest.mark.parametrize("n_bins", [1, 7, 33, 130])
def test_scores(n_bins, half, device):
    heads, batch = (1, 1) if n_bins > 33 else (3, 2)
    x = random(batch, n_bins, heads * (2 * C + 2 * LEVELS))
    index = torch.randint(LEVELS, (2 * n_bins - 1,)).int()
    assert_matches("pair_scores", device, half, x, index, heads, LEVELS)


@halves
@sizes
@pytest.mark.parametrize("first", [True, False])
def test_attention_inputs_of_pairs(first, size, half, device):
    batch, n_bins = size
    given = (
        *(random(H, batch, n_bins, n_bins), random(batch, n_bins, 2 * C)),
        None if first else random(batch, n_bins, n_bins, C, half=False),
        *(random(H, C), random(C), EPS, random(C, 3 * C, scale=0.3), random(3 * C)),
    )
    assert_matches("pair_attention_inputs", device, half, *given)


@halves
@sizes
@pytest.mark.parametrize("layers", [1, 2])
def test_mlp(layers, size, half, device):
    batch, n_bins = size
    mlp = PairMLP(random(C, 64, scale=0.3), random(64), random(64, C, scale=0.2), random(C))
    biases = PairBiases(
        *(random(layers, C, half=False) for _ in "st"), random(layers, C, H, scale=0.3)
    )
    given = random(batch, n_bins, n_bins, C, half=False), random(batch, n_bins, n_bins, C)
    assert_matches("pair_mlp", device, half, *given, EPS, mlp, biases)


@halves
@sizes
def test_contacts(size, half, device):
    batch, n_bins = size
    contacts = PairContacts(
        random(C, half=False),
        random(2, C, half=False),
        random(2, C, 5, scale=0.3),
        random(2, 5, half=False),
    )
    pair = random(batch, n_bins, n_bins, C, half=False)
    organism = torch.arange(batch) % 2
    given = pair, EPS, contacts, organism, torch.float32
    assert_matches("pair_contacts", device, half, *given)


@halves
@pytest.mark.parametrize("count", [0, 1, 2])
def test_maxima(count, half, device):
    activations = (Activation(*(random(40, half=False) for _ in "st")) for _ in range(count))
    assert_matches("pair_maxima", device, half, random(2, 34, 40), *activations)


def test_maxima_of_what_is_not_a_number(device):
    x = torch.tensor([1.0, torch.nan, torch.nan, 1.0]).half()[None, :, None].expand(1, 4, 8)
    assert pair_maxima(x.contiguous().to(device)).rows.isnan().all()
