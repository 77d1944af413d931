"""Assertions about neighbor graphs."""

from __future__ import annotations

import torch

from mlff_triton.neighbors.graph import Graph


def assert_valid(graph: Graph) -> None:
    """Assert all properties that `Graph` documents."""
    n_edges = graph.n_edges
    for values, shape in (
        (graph.row_ptr, (graph.n_atoms + 1,)),
        (graph.senders, (n_edges,)),
        (graph.shifts, (n_edges, 3)),
        (graph.reverse, (n_edges,)),
        (graph.receivers, (n_edges,)),
    ):
        assert values.dtype == torch.int64
        assert values.shape == shape
    assert graph.row_ptr[0] == 0
    assert graph.row_ptr[-1] == n_edges
    assert (graph.row_ptr.diff() >= 0).all()
    edges = edges_of(graph)
    assert edges == sorted(set(edges))
    assert all(0 <= j < graph.n_atoms for _, j, *_ in edges)
    index = torch.arange(n_edges)
    assert torch.equal(graph.reverse[graph.reverse], index)
    assert not (graph.reverse == index).any()
    atoms = torch.arange(graph.n_atoms)
    assert torch.equal(graph.receivers, atoms.repeat_interleave(graph.row_ptr.diff()))
    assert torch.equal(graph.senders[graph.reverse], graph.receivers)
    assert torch.equal(graph.shifts[graph.reverse], -graph.shifts)


def edges_of(graph: Graph) -> list[tuple[int, ...]]:
    """Return the edges (i, j, Sx, Sy, Sz) in the order of the graph."""
    row_ptr, senders, shifts = (
        values.tolist() for values in (graph.row_ptr, graph.senders, graph.shifts)
    )
    return [
        (i, senders[e], *shifts[e])
        for i in range(graph.n_atoms)
        for e in range(row_ptr[i], row_ptr[i + 1])
    ]


def assert_equal(actual: Graph, expected: Graph) -> None:
    """Assert that two graphs have the same edges in the same order."""
    for name in ("row_ptr", "senders", "shifts", "reverse"):
        assert torch.equal(getattr(actual, name), getattr(expected, name)), name
