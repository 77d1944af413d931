"""Sorted edges of accelerated models, and their pairs."""

from __future__ import annotations

from typing import Any

import pytest
import torch


@pytest.fixture
def sort_edges(torchmdnet) -> Any:
    """Function that sorts edges, which needs TorchMD-NET."""
    del torchmdnet
    from mlff_triton.torchmd_net.patched_tensornet import sort_edges

    return sort_edges


@pytest.mark.parametrize("spare", [0, 5])
def test_both_directions_of_a_pair_share_it(sort_edges, spare):
    generator = torch.Generator().manual_seed(0)
    positions = torch.rand(9, 3, generator=generator, dtype=torch.float64)
    linked = (torch.cdist(positions, positions) < 0.6).nonzero().T
    index = linked[:, torch.randperm(linked.shape[1], generator=generator)]
    vectors = positions[index[0]] - positions[index[1]]
    distances = vectors.norm(dim=1)
    n_edges = len(distances)
    filler = torch.full((2, spare), -1)
    edges = sort_edges(
        torch.cat([index, filler], 1),
        torch.cat([distances, torch.zeros(spare).double()]),
        torch.cat([vectors, torch.zeros(spare, 3).double()]),
        9,
        bool(spare),
    )
    pairs, opposite = edges.pairs[:n_edges], edges.reverse[:n_edges]
    loops = edges.receivers[:n_edges] == edges.senders[:n_edges]
    assert torch.equal(pairs, pairs[opposite])
    assert torch.equal(pairs == 0, loops)
    assert torch.equal(pairs[~loops].unique(), torch.arange(1, 1 + (n_edges - 9) // 2))
    assert torch.equal(edges.pair_distances[pairs], edges.distances[:n_edges])
    assert len(edges.pair_distances) == 1 + (n_edges + spare - 9) // 2
