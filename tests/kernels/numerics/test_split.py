"""Weights split into halves of float16."""

from __future__ import annotations

import pytest
import torch

from mlff_triton.errors import InputError
from mlff_triton.kernels.numerics.split import (
    SHIFT,
    WEIGHT_SCALE,
    SplitOperand,
    split_weight,
)


def test_halves_add_up():
    weight = torch.randn(3, 5, 7)
    high, low = split_weight(weight, "shifted_halves").double().unbind(-3)
    assert ((high + low / SHIFT - weight).abs() <= 2**-22 * weight.abs()).all()
    high, low = split_weight(weight, "fixed_halves").double().unbind(-3)
    assert ((high + low) / WEIGHT_SCALE - weight).abs().max() <= 2**-22 * weight.abs().max()


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
def test_rows_of_any_size_add_up(size):
    rows = size * torch.randn(5, 64)
    split = SplitOperand.of(rows)
    assert ((split.joined() - rows).abs() <= 2**-22 * rows.abs().amax(-1, keepdim=True)).all()
    assert (split.high.abs().amax(-1) >= 2**14).all()


@pytest.mark.parametrize(
    ("scheme", "largest"), [("shifted_halves", 65504.0), ("fixed_halves", 255.875)]
)
def test_weights_out_of_range_are_refused(scheme, largest):
    weight = torch.ones(2, 2)
    weight[1, 0] = -largest
    assert split_weight(weight, scheme).isfinite().all()
    for wrong in (1.001 * largest, torch.inf, torch.nan):
        weight[1, 0] = wrong
        with pytest.raises(InputError, match="not finite or too large to be split"):
            split_weight(weight, scheme)
