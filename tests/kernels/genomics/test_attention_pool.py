"""Pooling of pairs of rows with attention, compared with its reference in float64."""

from __future__ import annotations

import pytest
import torch

from mlff_triton.kernels.genomics import attention_pool as kernels
from mlff_triton.kernels.genomics.reference import attention_pool as reference
from mlff_triton.kernels.genomics.sequence_tiles import SMALL, Tile
from mlff_triton.kernels.genomics.types import Activation
from mlff_triton.testing import assert_within
from tests.kernels.genomics.rows import ROUNDING, random
from tests.support.token_cases import HALVES

SIZES = [(1, 1, 8), (2, 35, 24), (1, 20, 136)]  # B, pairs, channels
TILES = [SMALL, Tile(16, 64, 32, 2, 4, 2, 1)]


@pytest.mark.usefixtures("described")
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("tile", TILES, ids=lambda tile: f"{tile.rows}x{tile.columns}")
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("with_residual", [False, True])
def test_pairs_match_the_reference(size, with_residual, tile, dtype, device):
    torch.manual_seed(0)
    n_sequences, n_pairs, channels = size
    n_out = channels + 16
    x = random(n_sequences, 2 * n_pairs, channels, dtype=dtype)
    weight, bias = random(n_out, channels, dtype=dtype) / 4, random(n_out)
    residual = random(n_sequences, 2 * n_pairs, n_out, dtype=dtype) if with_residual else None
    expected = reference.paired_rows(x, weight, bias, residual)
    halves = [None if t is None else t.to(device, dtype) for t in (x, weight, residual)]
    found = kernels.launch_paired_rows(*halves[:2], bias.float().to(device), halves[2], tile)
    assert found.dtype == dtype
    assert_within(found.cpu(), expected, ROUNDING[dtype])


@pytest.mark.usefixtures("described")
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("tile", TILES, ids=lambda tile: f"{tile.rows}x{tile.columns}")
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_pools_match_the_reference(size, tile, dtype, device):
    torch.manual_seed(0)
    channels = size[2]
    pairs, weight = random(2, *size, dtype=dtype), random(channels, channels, dtype=dtype) / 4
    activation = Activation(random(channels), random(channels))
    expected = reference.attention_pool(pairs, weight, activation=activation)
    found = kernels.launch_attention_pool(
        pairs.to(device, dtype),
        weight.to(device, dtype),
        Activation(*(t.float().to(device) for t in activation)),
        True,
        tile,
    )
    for each, exact in zip(found, expected, strict=True):
        assert_within(each.cpu(), exact, ROUNDING[dtype])


def test_only_what_is_requested_is_returned(device):
    pairs, weight = torch.ones(2, 1, 4, 8, device=device).half(), torch.eye(8, device=device).half()
    ones = torch.ones(8, device=device)
    assert kernels.attention_pool(pairs, weight).activated is None
    pooled = kernels.attention_pool(
        pairs, weight, activation=Activation(ones, ones), with_rows=False
    )
    assert pooled.rows is None


def test_large_logits_choose_one_row(device):
    mean, difference = torch.arange(8.0), torch.tensor([40.0, -40.0] * 4)
    pairs = torch.stack([mean, difference])[:, None, None].half().to(device)
    weight = 100 * torch.eye(8, device=device).half()
    found = kernels.attention_pool(pairs, weight).rows
    assert torch.equal(found.flatten().cpu(), (mean + difference.abs()).half())
