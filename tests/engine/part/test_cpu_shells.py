"""Shells of atoms in loops for CPUs against those of any host."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mlff_triton._common.torch_settings import using_threads
from mlff_triton.engine import host_part
from mlff_triton.kernels.types.edges import Edges
from mlff_triton.neighbors.neighbor_list import neighbor_list
from mlff_triton.testing import random_cluster

pytest.importorskip("numba")
from mlff_triton.kernels.neighbors.cpu.shells import shells, sort_edges


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("n_layers", [1, 3])
@pytest.mark.parametrize("n_own", [1, 9, 200])
def test_atoms_and_edges_are_sorted_as_on_any_host(n_own, n_layers, threads):
    positions = random_cluster(200).positions
    graph = neighbor_list(positions, 2.0)
    slots = graph.row_ptr.int(), graph.senders.int(), graph.reverse.int()
    nothing = torch.zeros(graph.n_edges)
    edges = Edges(
        slots[0][:-1], slots[0][1:], slots[1], slots[2], slots[2], *[nothing] * 3, nothing, nothing
    )
    given = edges._replace(senders=edges.senders.clone())
    with using_threads(threads):
        order, rows = shells(given, n_own, n_layers)
        found = sort_edges(given, order)
    expected, counts = host_part.shells(graph, n_own, n_layers)
    assert torch.equal(order, expected)
    assert rows == counts
    assert rows[0] == n_own
    assert np.all(np.diff(rows) >= 0)
    for one, other in zip(found, host_part._sorted(edges, order), strict=True):
        assert torch.equal(one, other)
