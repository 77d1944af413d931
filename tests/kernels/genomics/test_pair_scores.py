"""Scores of pairs of bins, compared with their reference in float64."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.genomics.pair_cases import LEVELS, C, assert_matches, random
from tests.kernels.genomics.rows import halves


@halves
@pytest.mark.parametrize("n_bins", [1, 7, 33, 130])
def test_scores(n_bins, half, device):
    heads, batch = (1, 1) if n_bins > 33 else (3, 2)
    x = random(batch, n_bins, heads * (2 * C + 2 * LEVELS))
    index = torch.randint(LEVELS, (2 * n_bins - 1,)).int()
    assert_matches("pair_scores", device, half, x, index, heads, LEVELS)
