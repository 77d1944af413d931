"""Rows of edges for CPUs, and their blocks."""

from __future__ import annotations

import pytest
import torch

from mlff_triton.kernels.common.cpu import compilation
from mlff_triton.kernels.tensornet2.cpu import edge_rows as module
from mlff_triton.kernels.tensornet2.cpu.edge_rows import FEWEST_ROWS, ROWS, blocks, edge_rows
from tests.support.random_inputs import random_edges

SIZES = [(1, 0), (2, 5), (9, 30), (98, 28), (1000, 3)]


@pytest.mark.parametrize("layout", ["csr", "rows"])
@pytest.mark.parametrize(("n_atoms", "neighbors"), SIZES)
def test_rows_are_edges_and_sorted_by_sender(n_atoms, neighbors, layout):
    edges = random_edges(n_atoms, layout, neighbors)
    ends, _, partners = edge_rows(edges)
    slots, receivers = edges.live()
    own = ends.roll(1)
    own[0] = 0
    is_edge = torch.ones(int(ends[-1]), dtype=torch.bool)
    is_edge[own] = False
    assert torch.equal(partners.atoms[own], torch.arange(n_atoms))
    assert (partners.slots[own] == -1).all()
    assert (partners.opposite_slots[own] == -1).all()
    assert torch.equal(partners.slots[is_edge], slots)
    assert torch.equal(partners.atoms[is_edge], edges.senders[slots].long())
    opposites = edges.reverse[edges.origin[slots].long()].long()
    assert torch.equal(partners.opposite_slots[is_edge], opposites)
    assert torch.equal(partners.sent, partners.atoms.argsort(stable=True))
    assert torch.equal(partners.sent_by, partners.atoms[partners.sent])
    receivers_of_rows = torch.arange(n_atoms).repeat_interleave(
        ends.diff(prepend=ends.new_zeros(1))
    )
    assert torch.equal(partners.sent_to, receivers_of_rows[partners.sent])
    assert torch.equal(receivers_of_rows[is_edge], receivers)


@pytest.mark.parametrize("n_threads", [1, 2, 3])
@pytest.mark.parametrize(("n_atoms", "neighbors"), SIZES)
def test_blocks_share_the_rows_among_threads(n_atoms, neighbors, n_threads, monkeypatch):
    monkeypatch.setattr(module, "n_threads", lambda: n_threads)
    rows = edge_rows(random_edges(n_atoms, "csr", neighbors))
    first, last, begin, end = map(list, zip(*blocks(rows), strict=True))
    assert (first[0], last[-1], begin[0]) == (0, n_atoms, 0)
    assert first[1:] == last[:-1]
    assert begin[1:] == end[:-1]
    assert end == [int(rows.ends[k - 1]) for k in last]
    sizes = [b - a for a, b in zip(begin, end, strict=True)]
    largest = int(rows.ends.diff(prepend=torch.zeros(1)).max())
    assert max(sizes) - min(sizes) <= 2 * largest
    assert max(sizes) <= ROWS + 2 * largest
    assert len(sizes) % n_threads == 0 or min(sizes) < 2 * FEWEST_ROWS + largest


def test_rows_of_no_atoms():
    nothing = edge_rows(random_edges(3, "csr", 0).of_first(0))
    assert blocks(nothing) == []


def test_few_atoms_with_much_work_are_shared(monkeypatch):
    """A range may have fewer atoms than usual, but results do not depend on it."""
    calls = []
    monkeypatch.setattr(compilation, "n_threads", lambda: 2)
    monkeypatch.setattr(compilation, "in_parallel", lambda _, pieces: calls.extend(pieces))
    compilation.run(lambda *_: calls.append("alone"), 98)
    compilation.run(lambda *_: calls.append("alone"), 98, fewest=32)
    assert calls == ["alone", (0, 32), (32, 65), (65, 98)]
