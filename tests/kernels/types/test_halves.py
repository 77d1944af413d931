"""Weights split into halves of float16."""

from __future__ import annotations

import pytest
import torch

from mlff_triton.errors import InputError
from mlff_triton.kernels.types.halves import (
    SCALE,
    WEIGHT_SCALE,
    split_halves,
    split_scaled_halves,
)


def test_halves_add_up():
    weight = torch.randn(3, 5, 7)
    high, low = split_halves(weight).double().unbind(-3)
    assert ((high + low / SCALE - weight).abs() <= 2**-22 * weight.abs()).all()
    high, low = split_scaled_halves(weight).double().unbind(-3)
    assert ((high + low) / WEIGHT_SCALE - weight).abs().max() <= 2**-22 * weight.abs().max()


@pytest.mark.parametrize(
    ("split", "largest"), [(split_halves, 65504.0), (split_scaled_halves, 255.875)]
)
def test_weights_out_of_range_are_refused(split, largest):
    weight = torch.ones(2, 2)
    weight[1, 0] = -largest
    assert split(weight).isfinite().all()
    for wrong in (1.001 * largest, torch.inf, torch.nan):
        weight[1, 0] = wrong
        with pytest.raises(InputError, match="not finite or too large to be split"):
            split(weight)
