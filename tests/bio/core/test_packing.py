"""Packing of padded batches against the reference of the token embedding."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mlff_triton.bio.core.packing import find_rows, pack, unpack
from mlff_triton.kernels.transformer.reference.token_embedding import token_embedding

B, L, C = 4, 9, 5


def random_mask() -> Tensor:
    return torch.rand(B, L) < 0.6


MASKS = {
    "all": lambda: torch.ones(B, L, dtype=torch.bool),
    "none": lambda: torch.zeros(B, L, dtype=torch.bool),
    "random": random_mask,
    "an empty sequence": lambda: random_mask() & (torch.arange(B) != 1)[:, None],
    "last sequence empty": lambda: random_mask() & (torch.arange(B) < B - 1)[:, None],
    "no sequences": lambda: torch.ones(0, L, dtype=torch.bool),
    "no positions": lambda: torch.ones(B, 0, dtype=torch.bool),
}


@pytest.mark.parametrize("mask", MASKS)
def test_rows_are_those_of_the_token_embedding(mask, device):
    kept = MASKS[mask]().to(device)
    ids = torch.zeros(kept.shape, dtype=torch.int64, device=device)
    found = find_rows(kept)
    if kept.numel():
        _, expected = token_embedding(ids, torch.zeros(1, C, device=device), kept)
        live = len(expected.token)
        assert torch.equal(found.token[:live], expected.token)
        assert torch.equal(found.position[:live], expected.position)
        assert torch.equal(found.row_ptr, expected.row_ptr)
        assert torch.equal(found.row_of, expected.row_of)
    assert {tensor.dtype for tensor in found} == {torch.int32}
    assert len(found.token) == (int(kept.sum()) if device == "cpu" else kept.numel())


@pytest.mark.parametrize("channels", [(), (C,), (C, 2)])
@pytest.mark.parametrize("mask", MASKS)
def test_unpacking_reverses_packing(mask, channels, device):
    kept = MASKS[mask]().to(device)
    values = torch.randn(*kept.shape, *channels, device=device)
    packed = find_rows(kept)
    rows = pack(values, packed)
    live = int(packed.row_ptr[-1])
    assert torch.equal(rows[:live], values[kept])
    rows[live:] = torch.nan
    expected = values.masked_fill(~kept.view(*kept.shape, *(1,) * len(channels)), 0)
    assert torch.equal(unpack(rows, packed, tuple(kept.shape)), expected)
