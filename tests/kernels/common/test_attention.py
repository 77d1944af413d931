"""Softmax over keys that come in blocks, which the kernels of attention share."""

from __future__ import annotations

import math

import pytest
import torch
import triton
import triton.language as tl

from mlff_triton.kernels.common.attention import mean_of_values, weigh

ROWS, KEYS = 16, 32  # of a block


@triton.jit
def _softmax_kernel(
    scores_ptr,
    out_ptr,
    largest_ptr,
    n_keys,
    unit: tl.constexpr,
    exact: tl.constexpr,
    limit: tl.constexpr,
    rows: tl.constexpr,
    keys: tl.constexpr,
):
    """Write the mean index of keys, out [rows, 1], and the largest weights [rows]."""
    row = tl.arange(0, rows)
    peak, largest = tl.full([rows], float("-inf"), tl.float32), tl.zeros([rows], tl.float32)
    total, acc = tl.zeros([rows], tl.float32), tl.zeros([rows, 1], tl.float32)
    for start in range(0, n_keys, keys):
        key = start + tl.arange(0, keys)
        scores = tl.load(scores_ptr + row[:, None] * n_keys + key[None, :])
        weights, rescale, peak = weigh(
            scores, peak, unit, MAY_BE_MASKED=True, EXACT=exact, LARGEST=limit
        )
        total = total * rescale + tl.sum(weights, 1)
        largest = tl.maximum(largest * rescale, tl.max(weights, 1))
        values = tl.sum(weights * key.to(tl.float32)[None, :], 1)
        acc = acc * rescale[:, None] + values[:, None]
    tl.store(out_ptr + row[:, None], mean_of_values(acc, total, exact))
    tl.store(largest_ptr + row, largest)


@pytest.mark.parametrize(
    ("unit", "exact", "largest"),
    [(1.0, False, 0.0), (math.log2(math.e), False, 0.0), (1.0, True, 0.0), (1.0, False, 14.0)],
)
def test_blocks_of_keys_add_up_to_one_softmax(device, unit, exact, largest):
    scores = 9 * torch.randn(ROWS, 4 * KEYS) + torch.arange(4 * KEYS) / 4  # the peak rises
    scores[1, : 2 * KEYS + 5] = scores[2, KEYS:] = scores[3] = -torch.inf
    given = scores.to(device)
    out, weights = given.new_empty(ROWS, 1), given.new_empty(ROWS)
    _softmax_kernel[(1,)](given, out, weights, 4 * KEYS, unit, exact, largest, ROWS, KEYS)
    factor = 1.0 if exact else unit * math.log(2)
    expected = (factor * scores.double()).softmax(1) @ torch.arange(4 * KEYS).double()
    expected[3] = 0  # without keys
    assert (out[:, 0].cpu() - expected).abs().max() < 2e-4
    peaks = torch.full((ROWS,), 2.0**largest)
    peaks[3] = 0
    torch.testing.assert_close(weights.cpu(), peaks)
