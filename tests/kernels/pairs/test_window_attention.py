"""Attention within windows, compared with its reference in float64."""

from __future__ import annotations

import pytest
import torch

from mlff_triton.errors import InputError
from mlff_triton.kernels.pairs.reference.window_attention import (
    window_attention as reference,
)
from mlff_triton.kernels.pairs.window_attention import window_attention
from mlff_triton.testing import assert_within
from tests.kernels.pairs.cases import BOUNDS, dtypes, random, random_mask

# batches, samples, windows, heads, channels of a head, queries and keys of a window
SIZES = [
    *((1, 1, 1, 1, 32, 32, 128), (2, 3, 5, 2, 24, 32, 128), (1, 2, 3, 1, 8, 16, 64)),
    pytest.param((1, 2, 65, 4, 32, 32, 128), marks=pytest.mark.gpu),  # of Boltz-2
]


@dtypes
@pytest.mark.parametrize("placed", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_window_attention(size, masked, placed, precision, device):
    batches, samples, windows, heads, dim, queries, keys = size
    length = windows * queries
    packed = random(batches, samples, length, 3, heads, dim, dtype=precision)
    bias = random(batches, windows, heads, queries, keys, dtype=precision)
    mask = random_mask(batches, samples, length) if masked else None
    starts = torch.randint(-4, length, (windows,), dtype=torch.int32) if placed else None
    exact = reference(*packed.unbind(-3), bias, mask, starts=starts)
    moved = packed.to(device, precision).unbind(-3)  # parts of one product, without copies
    kept = None if mask is None else mask.to(device)
    first = None if starts is None else starts.to(device)
    found = window_attention(*moved, bias.to(device, precision), kept, starts=first)
    assert found.dtype is precision
    assert_within(found.cpu(), exact, BOUNDS[precision])


def test_keys_of_the_reference_have_the_center_of_their_queries():
    n, queries, keys = 80, 16, 32
    q, scores = torch.zeros(1, 1, n, 1, 1), torch.zeros(1, n // queries, 1, queries, keys)
    v = torch.arange(n).double().view(1, 1, n, 1, 1)
    found = reference(q.double(), q.double(), v, scores.double()).flatten()
    for i, mean in enumerate(found.tolist()):
        first = i // queries * queries - (keys - queries) // 2
        window = range(max(first, 0), min(first + keys, n))
        assert mean == pytest.approx(sum(window) / len(window))


def test_bad_arguments_are_refused(device):
    q = torch.ones(1, 2, 64, 1, 16, device=device)
    bias = torch.ones(1, 2, 1, 32, 128, device=device)
    with pytest.raises(InputError, match="2 windows of 32 do not have 48 atoms"):
        window_attention(q[:, :, :48], q[:, :, :48], q[:, :, :48], bias)
    with pytest.raises(InputError, match="31 queries"):
        window_attention(q, q, q, bias[..., :31, :])
    with pytest.raises(InputError, match="mask has the shape"):
        window_attention(q, q, q, bias, q[..., 0, 0, 0])
    with pytest.raises(InputError, match="must be contiguous"):
        window_attention(q, q, q.repeat_interleave(2, -1)[..., ::2], bias)
    assert not window_attention(q[:, :0], q[:, :0], q[:, :0], bias).numel()
