"""Conditioned attention within windows, compared with its reference in float64."""

from __future__ import annotations

import pytest
import torch

from mlff_triton.errors import InputError
from mlff_triton.kernels.pairs.conditioning import conditioned_windows_
from mlff_triton.kernels.pairs.reference.conditioning import conditioned_windows_update
from mlff_triton.kernels.pairs.types import WindowAttentionWeights, WindowConditions
from mlff_triton.testing import assert_within
from tests.kernels.pairs.cases import BOUNDS, dtypes, random, random_map, random_mask, to

SIZES = [  # batches, samples, windows, queries and keys of a window, heads, channels
    *((1, 1, 1, 16, 32, 2, 32), (2, 3, 4, 16, 32, 2, 32)),
    pytest.param((1, 2, 33, 32, 128, 4, 128), marks=pytest.mark.gpu),  # of Boltz-2
]


@dtypes
@pytest.mark.parametrize("placed", [False, True])
@pytest.mark.parametrize("chained", [False, True])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_conditioned_windows(size, chained, placed, precision, device):
    batches, samples, windows, queries, keys, heads, channels = size
    n = windows * queries
    x = random(batches, samples, n, channels, dtype=precision)
    shared = tuple(random(batches, 1, n, channels, dtype=precision) for _ in range(5))
    bias = random(batches, windows, heads, queries, keys, dtype=precision)
    maps = (
        random_map(2 * channels, channels, precision),
        random(2 * channels, dtype=precision),
        random_map(2 * channels, channels, precision),
        random_map(channels, channels, precision),
    )
    mask = random_mask(batches, samples, n)
    starts = torch.randint(-4, n, (windows,), dtype=torch.int32) if placed else None
    weights = WindowAttentionWeights(*maps, chained)
    update = conditioned_windows_update(x, WindowConditions(*shared), bias, weights, mask, starts)
    terms = (term.expand(-1, samples, -1, -1) for term in to(shared, device, precision))
    found = x.to(device, torch.float32)
    result = conditioned_windows_(
        found,
        WindowConditions(*terms),
        bias.to(device, precision),
        WindowAttentionWeights(*to(maps, device, precision), chained),
        mask.to(device),
        None if starts is None else starts.to(device),
    )
    assert result is found
    assert_within(found.cpu().double() - x, update, BOUNDS[precision])


def test_bad_arguments_are_refused(device):
    x = torch.ones(1, 2, 32, 16, device=device)
    terms, bias = WindowConditions(*[x] * 5), torch.ones(1, 2, 3, 16, 32, device=device)
    wide, square = torch.ones(32, 16, device=device), torch.ones(16, 16, device=device)
    with pytest.raises(InputError, match="not divisible by 3 heads"):
        conditioned_windows_(x, terms, bias, WindowAttentionWeights(wide, None, wide, square))
    with pytest.raises(InputError, match="keys has the shape"):
        conditioned_windows_(x, terms, bias, WindowAttentionWeights(wide, None, square, square))
