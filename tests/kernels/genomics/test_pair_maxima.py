"""Maxima of pairs of positions, compared with their reference in float64."""

from __future__ import annotations

import pytest
import torch

from mlff_triton.kernels.genomics.pair_maxima import pair_maxima
from mlff_triton.kernels.genomics.types import Activation
from tests.kernels.genomics.pair_cases import assert_matches, random
from tests.kernels.genomics.rows import halves


@halves
@pytest.mark.parametrize("count", [0, 1, 2])
def test_maxima(count, half, device):
    activations = (Activation(*(random(40, half=False) for _ in "st")) for _ in range(count))
    assert_matches("pair_maxima", device, half, random(2, 34, 40), *activations)


def test_maxima_of_what_is_not_a_number(device):
    x = torch.tensor([1.0, torch.nan, torch.nan, 1.0]).half()[None, :, None].expand(1, 4, 8)
    assert pair_maxima(x.contiguous().to(device)).rows.isnan().all()
