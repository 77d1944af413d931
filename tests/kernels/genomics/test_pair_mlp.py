"""The network of pairs, compared with its reference in float64."""

from __future__ import annotations

import pytest

from mlff_triton.kernels.genomics.types import PairBiases, PairMLP
from tests.kernels.genomics.pair_cases import EPS, C, H, assert_matches, random, sizes
from tests.kernels.genomics.rows import halves


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
