"""Queries, keys and values of attention, compared with their reference in float64."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.genomics.pair_cases import EPS, assert_matches, random
from tests.kernels.genomics.rows import halves


@halves
@pytest.mark.parametrize(("heads", "dim", "value_dim"), [(3, 16, 24), (8, 128, 192), (1, 12, 8)])
def test_attention_inputs(heads, dim, value_dim, half, device):
    x = random(2, 19, heads * dim + dim + value_dim, scale=2.0) + 1
    norms = [(random(n, half=False), random(n, half=False), EPS) for n in (dim, dim, value_dim)]
    angle = 3 * torch.rand(19, dim // 2)
    assert_matches("attention_inputs", device, half, x, *norms, angle.cos(), angle.sin())
