"""Checks of masks."""

from __future__ import annotations

import math

import pytest
import torch

from mlff_triton.bio.models.structure.mask_check import MaskCheck

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", [*DTYPES, torch.int64, torch.bool])
def test_zeros_and_ones_pass(dtype, device):
    for mask in (torch.tensor([0, 1, 1, 0]), torch.zeros(2, 3), torch.ones(1)):
        assert MaskCheck().refusal(mask.to(device, dtype)) is None


@pytest.mark.parametrize("value", [0.5, -1.0, 2.0, math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("dtype", DTYPES)
def test_other_values_are_refused(value, dtype, device):
    mask = torch.ones(3, 4, device=device, dtype=dtype)
    mask[1, 2] = value
    assert "values other than 0 and 1" in MaskCheck().refusal(mask)


@pytest.mark.parametrize("dtype", DTYPES)
def test_neighbors_of_zero_and_one_are_refused(dtype, device):
    info = torch.finfo(dtype)
    for value in (info.smallest_normal, -info.smallest_normal, 1 + info.eps, 1 - info.eps / 2):
        mask = torch.tensor([1, value, 0], device=device, dtype=dtype)
        assert MaskCheck().refusal(mask) is not None, value


def test_integers_are_refused(device):
    assert MaskCheck().refusal(torch.tensor([0, 2], device=device)) is not None
