"""Invariants of the neighbor graph, for arbitrary pairs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mlff_triton.errors import InputError
from mlff_triton.neighbors.graph import Graph, concatenate
from mlff_triton.neighbors.neighbor_list import neighbor_list
from mlff_triton.testing import random_cluster, random_crystal
from tests.support.graphs import assert_equal, assert_valid, edges_of


def graph_of(pairs: list[tuple[int, ...]], n_atoms: int) -> Graph:
    """Make a graph of pairs (i, j, Sx, Sy, Sz) and their opposites, in the given order."""
    both = pairs + [(j, i, -a, -b, -c) for i, j, a, b, c in pairs]
    table = torch.tensor(both, dtype=torch.int64).reshape(-1, 5)
    return Graph.from_pairs(table[:, 0], table[:, 1], table[:, 2:], n_atoms)


@st.composite
def pairs_of_atoms(draw):
    """Draw undirected pairs of atoms, in any order and either direction."""
    n_atoms = draw(st.integers(1, 6))
    atom, step = st.integers(0, n_atoms - 1), st.integers(-3, 3)
    pairs = draw(st.lists(st.tuples(atom, atom, step, step, step), max_size=20))
    undirected = {
        max(pair, (pair[1], pair[0], *(-s for s in pair[2:]))): pair
        for pair in pairs
        if pair[0] != pair[1] or any(pair[2:])
    }
    return list(undirected.values()), n_atoms


CRYSTAL = random_crystal(12, "small", seed=1)
CRYSTAL_GRAPH = neighbor_list(CRYSTAL.positions, 4.0, CRYSTAL.cell.array, CRYSTAL.pbc)


@given(pairs_of_atoms())
def test_any_symmetric_pairs_make_a_valid_graph(case):
    pairs, n_atoms = case
    graph = graph_of(pairs, n_atoms)
    assert_valid(graph)
    assert graph.n_atoms == n_atoms
    assert set(edges_of(graph)) == set(pairs) | {(j, i, -a, -b, -c) for i, j, a, b, c in pairs}


@given(pairs_of_atoms(), st.randoms(use_true_random=False))
def test_order_of_pairs_does_not_matter(case, random):
    pairs, n_atoms = case
    expected = graph_of(pairs, n_atoms)
    random.shuffle(pairs)
    assert_equal(graph_of(pairs, n_atoms), expected)


@given(pairs_of_atoms())
def test_pairs_name_each_undirected_pair_once(case):
    graph = graph_of(*case)
    first, pair = graph.pairs
    assert len(first) == graph.n_edges // 2
    assert torch.equal(pair[first], torch.arange(len(first)))
    assert torch.equal(pair[graph.reverse], pair)
    assert (first == torch.minimum(first, graph.reverse[first])).all()
    assert torch.equal(torch.bincount(pair, minlength=len(first)), torch.full_like(first, 2))


@given(pairs_of_atoms(), st.integers(0, 2**20 - 1))
def test_selection_is_the_graph_of_the_selected_pairs(case, bits):
    pairs, n_atoms = case
    chosen = [pair for k, pair in enumerate(pairs) if bits >> k & 1]
    graph, expected = graph_of(pairs, n_atoms), graph_of(chosen, n_atoms)
    wanted = set(edges_of(expected))
    keep = torch.tensor([edge in wanted for edge in edges_of(graph)], dtype=torch.bool)
    selected = graph.select(keep)
    assert_valid(selected)
    assert_equal(selected, expected)


@given(pairs_of_atoms(), st.integers(0, 2**20 - 1))
def test_chosen_edges_come_first_and_the_others_belong_to_no_row(case, bits):
    graph = graph_of(*case)
    chosen = (bits >> graph.pairs[1]) & 1 == 1
    moved, order = graph.with_first(chosen)
    selected = graph.select(chosen)
    n = selected.n_edges
    front = Graph(moved.row_ptr, moved.senders[:n], moved.shifts[:n], moved.reverse[:n])
    assert_equal(front, selected)
    assert torch.equal(order, torch.cat([chosen.nonzero()[:, 0], (~chosen).nonzero()[:, 0]]))
    for name in ("receivers", "senders", "shifts"):
        assert torch.equal(getattr(moved, name), getattr(graph, name)[order])
    assert torch.equal(order[moved.reverse], graph.reverse[order])
    first, pair = moved.pairs
    assert torch.equal(first[: n // 2], selected.pairs[0])
    assert torch.equal(pair[:n], selected.pairs[1])


def test_opposite_edges_have_exactly_opposite_vectors():
    positions = torch.from_numpy(CRYSTAL.positions) + 1e3
    cell = torch.from_numpy(CRYSTAL.cell.array)[None]
    for dtype in (torch.float32, torch.float64):
        vectors = CRYSTAL_GRAPH.vectors(positions.to(dtype), cell.to(dtype), None)
        assert torch.equal(vectors[CRYSTAL_GRAPH.reverse], -vectors)


def test_vectors_follow_their_definition():
    positions, cell = CRYSTAL.positions, CRYSTAL.cell.array
    expected = [
        positions[i] - positions[j] - np.array(shift) @ cell
        for i, j, *shift in edges_of(CRYSTAL_GRAPH)
    ]
    vectors = CRYSTAL_GRAPH.vectors(torch.from_numpy(positions), torch.from_numpy(cell)[None], None)
    assert vectors.numpy() == pytest.approx(np.array(expected), abs=1e-13)


def test_vectors_are_differentiable():
    positions = torch.from_numpy(CRYSTAL.positions).requires_grad_()
    cell = torch.from_numpy(CRYSTAL.cell.array)[None].requires_grad_()
    assert torch.autograd.gradcheck(
        lambda *arguments: CRYSTAL_GRAPH.vectors(*arguments, None)[:30], (positions, cell)
    )


def test_what_is_cached_in_inference_mode_serves_gradients():
    graph = neighbor_list(CRYSTAL.positions, 4.0, CRYSTAL.cell.array, CRYSTAL.pbc)
    positions = torch.from_numpy(CRYSTAL.positions).requires_grad_()
    cell = torch.from_numpy(CRYSTAL.cell.array)[None]
    with torch.inference_mode():
        assert len(graph.receivers) == len(graph.pairs[1])
    vectors = graph.vectors(positions, cell, None)[graph.pairs[0]]
    assert torch.autograd.grad(vectors.square().sum(), positions)[0].any()


def test_vectors_of_a_batch_are_those_of_its_systems():
    systems = [random_crystal(5, "slab"), random_crystal(3, "small"), random_crystal(1, "cubic")]
    cells = [torch.from_numpy(s.cell.array)[None] for s in systems]
    positions = [torch.from_numpy(s.positions) for s in systems]
    graphs = [neighbor_list(s.positions, 4.0, s.cell.array, s.pbc) for s in systems]
    batch = torch.repeat_interleave(torch.arange(3), torch.tensor([5, 3, 1]))
    vectors = concatenate(graphs).vectors(torch.cat(positions), torch.cat(cells), batch)
    expected = [g.vectors(p, c, None) for g, p, c in zip(graphs, positions, cells, strict=True)]
    torch.testing.assert_close(vectors, torch.cat(expected), rtol=0, atol=1e-13)


def test_concatenation_numbers_atoms_and_edges_on():
    isolated = neighbor_list([[0.0, 0.0, 0.0]], 1.0)
    cluster = random_cluster(6)
    graphs = [isolated, CRYSTAL_GRAPH, isolated, neighbor_list(cluster.positions, 3.0)]
    joined = concatenate(graphs)
    assert_valid(joined)
    expected, first = [], 0
    for graph in graphs:
        expected += [(i + first, j + first, *shift) for i, j, *shift in edges_of(graph)]
        first += graph.n_atoms
    assert edges_of(joined) == expected
    assert joined.n_atoms == first


def test_concatenation_of_one_is_itself():
    assert_equal(concatenate([CRYSTAL_GRAPH]), CRYSTAL_GRAPH)


def test_graph_without_edges():
    graph = graph_of([], 3)
    assert_valid(graph)
    assert graph.row_ptr.tolist() == [0, 0, 0, 0]
    assert graph.pairs[0].shape == graph.pairs[1].shape == (0,)
    assert graph.vectors(torch.zeros(3, 3), None, None).shape == (0, 3)
    assert_equal(graph.select(torch.zeros(0, dtype=torch.bool)), graph)


def test_moving_to_a_device_keeps_everything():
    moved = CRYSTAL_GRAPH.to("cpu")
    assert_equal(moved, CRYSTAL_GRAPH)
    assert torch.equal(moved.receivers, CRYSTAL_GRAPH.receivers)


@pytest.mark.gpu
def test_graph_on_a_gpu_is_the_same():
    moved = CRYSTAL_GRAPH.to("cuda")
    for name in ("receivers", "senders", "reverse"):
        assert getattr(moved, name).device.type == "cuda"
        assert torch.equal(getattr(moved, name).cpu(), getattr(CRYSTAL_GRAPH, name))
    for on_gpu, on_cpu in zip(moved.pairs, CRYSTAL_GRAPH.pairs, strict=True):
        assert torch.equal(on_gpu.cpu(), on_cpu)


def test_shifts_too_wide_for_one_key_are_sorted_or_refused():
    far = 40_000_000  # three such shifts and two atoms do not fit into 64 bits
    pairs = [(0, 1, far, 0, 0), (0, 1, 0, 0, 1), (0, 1, -far, far, -1), (1, 0, 1, far, 2)]
    try:
        graph = graph_of(pairs, 2)
    except InputError:
        return
    assert_valid(graph)


@pytest.mark.parametrize(
    ("pairs", "reason"),
    [
        ([(0, 1, 0, 0, 0)], "not symmetric"),
        ([(0, 1, 1, 0, 0), (1, 0, 1, 0, 0)], "not symmetric"),
        ([(0, 1, 0, 0, 0), (1, 0, 0, 0, 0), (1, 0, 0, 0, 0)], "not symmetric"),
        ([(0, 2, 0, 0, 0), (2, 0, 0, 0, 0)], "outside"),
        ([(0, -1, 0, 0, 0), (-1, 0, 0, 0, 0)], "outside"),
        ([(0, 0, 0, 0, 0)], "paired with itself"),  # an atom paired with itself
        ([(0, 1, 0, 0, 0), (1, 0, 0, 0, 0)] * 2, "occurs twice"),  # the same pair twice
    ],
)
def test_pairs_that_make_no_graph_are_refused(pairs, reason):
    table = torch.tensor(pairs)
    with pytest.raises(InputError, match=reason):
        Graph.from_pairs(table[:, 0], table[:, 1], table[:, 2:], 2)
