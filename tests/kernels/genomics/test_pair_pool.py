"""Bins of positions, compared with their reference in float64."""

from __future__ import annotations

import pytest

from tests.kernels.genomics.pair_cases import EPS, assert_matches, random
from tests.kernels.genomics.rows import halves


@halves
@pytest.mark.parametrize("channels", [16, 50])
def test_pool(channels, half, device):
    shift, weight, bias = (random(channels) for _ in range(3))
    given = random(2, 3 * 16, channels), shift, weight, bias, EPS, 16
    assert_matches("pair_pool", device, half, *given)
