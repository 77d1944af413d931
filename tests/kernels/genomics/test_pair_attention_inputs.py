"""Queries, keys and values of rows of pairs, compared with their reference in float64."""

from __future__ import annotations

import pytest

from tests.kernels.genomics.pair_cases import EPS, C, H, assert_matches, random, sizes
from tests.kernels.genomics.rows import halves


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
