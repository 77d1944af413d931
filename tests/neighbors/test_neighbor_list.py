"""Neighbor lists against ASE and brute force."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from ase.neighborlist import primitive_neighbor_list
from hypothesis import given
from hypothesis import strategies as st

from mlff_triton.errors import InputError, OverlappingAtomsError
from mlff_triton.neighbors.box import Box
from mlff_triton.neighbors.graph import Graph
from mlff_triton.neighbors.neighbor_list import neighbor_list
from mlff_triton.neighbors.verlet_list import VerletList
from mlff_triton.testing import random_cluster, random_crystal
from tests.support.graphs import assert_equal, assert_valid, edges_of
from tests.support.periodic_structures import brute_force, structures

CUBE = 3.0 * np.eye(3)


def vectors_of(graph: Graph, positions, cell, pbc) -> torch.Tensor:
    box = Box.of(cell, pbc)
    return graph.vectors(torch.tensor(positions), torch.tensor(box.cell)[None], None)


@given(structures())
def test_finds_the_pairs_that_brute_force_finds(structure):
    graph = neighbor_list(*structure)
    assert_valid(graph)
    expected = brute_force(*structure)
    assert edges_of(graph) == sorted(expected)
    distances = vectors_of(graph, structure[0], *structure[2:]).norm(dim=1).numpy()
    assert distances == pytest.approx([expected[edge] for edge in sorted(expected)], abs=1e-12)


@given(structures())
def test_finds_the_pairs_that_ase_finds(structure):
    positions, cutoff, cell, pbc = structure
    i, j, shifts, vectors = primitive_neighbor_list("ijSD", pbc, cell, positions, cutoff)
    order = np.lexsort((*shifts.T[::-1], j, i))
    graph = neighbor_list(positions, cutoff, cell, pbc)
    assert edges_of(graph) == [(i[e], j[e], *shifts[e]) for e in order]
    ours = vectors_of(graph, positions, cell, pbc).numpy()
    assert ours == pytest.approx(-vectors[order], abs=1e-12)  # ASE's vectors point from i to j


@given(structures())
def test_the_same_input_gives_the_same_list(structure):
    assert_equal(neighbor_list(*structure), neighbor_list(*structure))


@given(structures(), st.randoms(use_true_random=False))
def test_permuted_atoms_have_permuted_edges(structure, random):
    positions, *rest = structure
    order = list(range(len(positions)))
    random.shuffle(order)
    permuted = edges_of(neighbor_list(positions[order], *rest))
    renamed = [(order[i], order[j], *shift) for i, j, *shift in permuted]
    assert sorted(renamed) == edges_of(neighbor_list(positions, *rest))


@given(structures())
def test_opposite_edges_have_exactly_opposite_vectors(structure):
    positions, _, cell, pbc = structure
    graph = neighbor_list(*structure)
    vectors = vectors_of(graph, positions, cell, pbc)
    assert torch.equal(vectors[graph.reverse], -vectors)


@pytest.mark.parametrize("kind", ["cubic", "triclinic", "small", "slab", "rod"])
@pytest.mark.parametrize("n_atoms", [1, 63, 500])
def test_larger_crystals_agree_with_ase(kind, n_atoms):
    atoms = random_crystal(n_atoms, kind, seed=n_atoms)
    graph = neighbor_list(atoms.positions, 3.0, atoms.cell.array, atoms.pbc)
    assert_same_as_ase(graph, atoms, 3.0)


def test_large_cluster_agrees_with_ase():
    atoms = random_cluster(500)
    assert_same_as_ase(neighbor_list(atoms.positions, 3.0), atoms, 3.0)


def assert_same_as_ase(graph, atoms, cutoff):
    i, j, shifts = primitive_neighbor_list("ijS", atoms.pbc, atoms.cell, atoms.positions, cutoff)
    order = np.lexsort((*shifts.T[::-1], j, i))
    assert_valid(graph)
    assert graph.n_atoms == len(atoms)
    assert graph.receivers.tolist() == i[order].tolist()
    assert graph.senders.tolist() == j[order].tolist()
    assert graph.shifts.tolist() == shifts[order].tolist()


def test_single_atom_in_vacuum_has_no_edges():
    graph = neighbor_list([[1.0, 2.0, 3.0]], 5.0)
    assert_valid(graph)
    assert (graph.n_atoms, graph.n_edges) == (1, 0)


def test_single_atom_sees_its_images():
    graph = neighbor_list([[7.0, -8.0, 9.0]], 3.1, CUBE, True)
    assert graph.shifts.abs().sum(1).tolist() == [1] * 6


def test_a_pair_at_the_cutoff_is_out():
    pair = [[0.0, 0.0, 0.0], [0.0, 0.0, 1.5]]
    assert neighbor_list(pair, 1.5).n_edges == 0
    assert neighbor_list(pair, np.nextafter(1.5, 2)).n_edges == 2
    for skin in (0.0, 0.3):
        assert VerletList(1.5, skin).update(pair, None, False).n_edges == 0
        assert VerletList(np.nextafter(1.5, 2), skin).update(pair, None, False).n_edges == 2


@pytest.mark.parametrize("cell", [None, np.zeros((3, 3)), np.diag([0.0, 9.0, 0.0]), CUBE])
def test_open_directions_need_no_cell(cell):
    positions = random_cluster(6).positions
    graph = neighbor_list(positions, 3.0, cell, False)
    assert_equal(graph, neighbor_list(positions, 3.0))
    assert not graph.shifts.any()


def test_one_periodic_vector_is_enough():
    chain = neighbor_list(
        [[0.0, 0.0, 0.0]], 2.5, [[0, 0, 0], [1, 1, 0], [0, 0, 0]], [False, True, False]
    )
    assert chain.shifts[:, 1].tolist() == [-1, 1]


def test_input_may_be_tensors_lists_or_single_precision():
    atoms = random_crystal(4)
    positions, cell = atoms.positions.astype(np.float32), atoms.cell.array.astype(np.float32)
    expected = neighbor_list(positions, 3.0, cell, True)
    assert_equal(neighbor_list(positions.tolist(), 3.0, cell.tolist(), [True] * 3), expected)
    assert_equal(neighbor_list(torch.tensor(positions), 3.0, torch.tensor(cell), True), expected)
    assert_equal(neighbor_list(np.asfortranarray(positions), 3.0, cell, True), expected)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_positions_that_are_not_finite_are_refused(bad):
    positions = random_cluster(4).positions
    positions[2, 1] = bad
    for search in (neighbor_list, lambda p, c: VerletList(c).update(p, None, False)):
        with pytest.raises(InputError, match="atom 2 is NaN or infinite"):
            search(positions, 3.0)


@pytest.mark.parametrize("shape", [(3,), (2, 2), (1, 2, 3), ()])
def test_positions_of_wrong_shape_are_refused(shape):
    with pytest.raises(InputError, match=r"shape \[N, 3\]"):
        neighbor_list(np.zeros(shape), 3.0)


@pytest.mark.parametrize("shape", [(0, 3)])
def test_no_atoms_are_refused(shape):
    with pytest.raises(InputError, match="no atoms"):
        neighbor_list(np.zeros(shape), 3.0)


@pytest.mark.parametrize("positions", [[["a", 0, 0]], [[0, 0, 0], [0, 0]], [[0, 0, 1j]]])
def test_positions_that_are_no_numbers_are_refused(positions):
    with pytest.raises(InputError, match="positions"):
        neighbor_list(positions, 3.0)


@pytest.mark.parametrize("n_atoms", [1, 2, 3, 40])
def test_infinite_cutoff_finds_all_pairs(n_atoms):
    positions = random_cluster(n_atoms).positions
    found, expected = neighbor_list(positions, np.inf), neighbor_list(positions, 100.0)
    for name in ("row_ptr", "senders", "shifts", "reverse"):
        assert torch.equal(getattr(found, name), getattr(expected, name))
    assert found.n_edges == n_atoms * (n_atoms - 1)


def test_infinite_cutoff_is_refused_where_there_are_too_many_pairs():
    with pytest.raises(InputError, match="infinitely many pairs: take a finite cutoff"):
        neighbor_list(np.zeros((1, 3)), np.inf, np.eye(3), [False, True, False])
    with pytest.raises(InputError, match="at most 20000 atoms"):
        neighbor_list(np.arange(60_003).reshape(-1, 3) / 100, np.inf)
    with pytest.raises(OverlappingAtomsError, match="atoms 0 and 2 are"):
        neighbor_list([[0.0, 0.0, 0.0], [5.0, 0.0, 0.0], [0.0, 0.0, 0.0]], np.inf)


@pytest.mark.parametrize("cutoff", [0.0, -1.0, np.nan])
def test_impossible_cutoffs_are_refused(cutoff):
    with pytest.raises(InputError, match="cutoff"):
        neighbor_list([[0.0, 0.0, 0.0]], cutoff)
    with pytest.raises(InputError, match="cutoff"):
        VerletList(cutoff)


@pytest.mark.parametrize(
    ("second", "cell", "pbc"),
    [
        ([0.1, 0.2, 0.3], None, False),
        ([0.1, 0.2, 0.3 + 1e-4], None, False),
        ([3.1, 0.2, -5.7], CUBE, True),
        ([3.1, 0.2, 0.3], CUBE, [True, False, False]),
    ],
)
def test_atoms_at_one_point_are_refused(second, cell, pbc):
    positions = [[0.1, 0.2, 0.3], second, [2.0, 2.0, 2.0]]
    for search in (neighbor_list, lambda p, c, *box: VerletList(c).update(p, *box)):
        with pytest.raises(OverlappingAtomsError, match=r"atoms (0 and 1|1 and 0)"):
            search(positions, 2.5, cell, pbc)


def test_atoms_at_one_point_in_an_open_direction_are_not():
    positions = [[0.1, 0.2, 0.3], [3.1, 0.2, 0.3]]
    assert neighbor_list(positions, 2.5, CUBE, [False, True, True]).n_edges == 0


FLOWN_OFF = """
import numpy as np
import torch
from mlff_triton.errors import InputError
from mlff_triton import VerletList, neighbor_list

cell, pbc = 4.0 * np.eye(3), {pbc}
for distance in (1e2, 1e3, 1e4, 1e5, 1e6, 1e8, 1e10, 1e12, 1e15, 1e300):
    positions = np.array([[0.0, 0.0, 0.0], [distance + 1.5, 0.0, 0.0], [distance + 2.5, 0.0, 0.0]])
    for search in (neighbor_list, lambda p, c, *box: VerletList(c).update(p, *box)):
        try:
            graph = search(positions, 2.0, cell, pbc)
        except InputError:
            continue
        vectors = graph.vectors(torch.tensor(positions), torch.tensor(cell)[None], None)
        assert graph.n_edges == {n_edges}, (distance, graph)
        assert (vectors.norm(dim=1) < 2.0).all(), (distance, graph)
"""


@pytest.mark.parametrize(
    ("pbc", "n_edges"), [([False] * 3, 2), ([False, True, True], 2), ([True] * 3, 6)]
)
def test_atoms_that_flew_off_are_listed_or_refused(pbc, n_edges):
    """Run in a separate process, which an overflow in the search might kill or hang."""
    code = FLOWN_OFF.format(pbc=pbc, n_edges=n_edges)
    done = subprocess.run(  # noqa: S603 - the code is above
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=False
    )
    assert done.returncode == 0, done.stderr


CLOSE = [[0.1, 0.2, -0.3], [1.0, 4.0, 0.9], [4.8, 0.3, 0.4], [2.0, 2.0, 3.0]]
ELONGATED = {
    "needle": ([*CLOSE, [1.0, 1.0, -4e6]], [5.0, 5.0, 1e6], [True] * 3),
    "smallest needle": (CLOSE, [5.0, 5.0, 500_005.0], [True] * 3),
    "long needle": (CLOSE, [5.0, 5.0, 1e11], [True] * 3),
    "sheet": ([*CLOSE, [0.0, 800.0, 800.0]], [5.0, 1580.0, 1585.0], [True] * 3),
    "line that fills a sheet": (
        [[0.0, 4.0 * k, 4.0 * k] for k in range(400)],
        [5.0, 1600.0, 1600.0],
        [True] * 3,
    ),
    "flat molecule": ([*CLOSE, [0.0, 1600.0, 1600.0]], [1.0, 1.0, 1.0], [False] * 3),
    "largest molecule": ([*CLOSE, [0.0, 9990.0, 9990.0]], [1.0, 1.0, 1.0], [False] * 3),
    "slab": ([*CLOSE, [0.0, 0.0, 9000.0]], [5.0, 9000.0, 1.0], [True, True, False]),
}
SEARCH = """
import json, sys
import numpy as np
from mlff_triton import neighbor_list
for points, lengths, pbc in json.load(sys.stdin):
    graph = neighbor_list(points, 5.8, np.diag(lengths), pbc)
    print(json.dumps([graph.receivers.tolist(), graph.senders.tolist(), graph.shifts.tolist()]))
"""


def test_elongated_cells_and_structures_do_not_crash():
    """Run in a separate process, which a division by zero in the search might kill."""
    done = subprocess.run(  # noqa: S603 - the code is above
        [sys.executable, "-c", SEARCH],
        input=json.dumps(list(ELONGATED.values())),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for line, (name, structure) in zip(done.stdout.splitlines(), ELONGATED.items(), strict=True):
        found = {(i, j, *shift) for i, j, shift in zip(*json.loads(line), strict=True)}
        assert found == edges_within(5.8, *structure), name


def test_sparse_rods_take_no_longer_than_others():
    """Five atoms in an extent of 500 Å took 30 s."""
    points = 500 * np.random.default_rng(0).random((5, 3))
    points[1] = points[0] + [0.0, 2.0, 31.0]  # 1 Å less than the period
    begun = time.perf_counter()
    graph = neighbor_list(points, 5.0, 30 * np.eye(3), [False, False, True])
    assert time.perf_counter() - begun < 3
    assert sorted(graph.shifts[:, 2].abs().tolist()) == [1, 1]
    assert not graph.shifts[:, :2].any()


def test_atoms_far_from_the_origin_have_the_pairs_of_atoms_near_it():
    """In a skewed cell, errors of fractions are a thousand times those of positions."""
    near = np.round(np.random.default_rng(0).uniform(0, 2, (3, 3)) * 2**10) / 2**10
    far = near + 2.0**29  # exactly
    cell = [[2.4, 38.75, 0.0], [0.0, 2.4, 0.0], [0.0, 0.0, 2.4]]
    found, expected = (
        vectors_of(neighbor_list(points, 4.5, cell, True), points, cell, True)
        for points in (far, near)
    )
    assert torch.equal(
        found.norm(dim=1).sort().values.round(decimals=9),
        expected.norm(dim=1).sort().values.round(decimals=9),
    )


def test_atoms_far_from_the_origin_are_refused():
    with pytest.raises(InputError, match=r"more than 1e\+12 Å from the origin"):
        neighbor_list([[0.9, -1e308, 0.4]], 5.0, np.diag([2.0, 2.0, 1.5]), [False, False, True])


def edges_within(cutoff, points, lengths, pbc) -> set[tuple[int, ...]]:
    """Find edges in an orthogonal cell by brute force, among the images next to the nearest."""
    positions, cell = np.array(points), np.array(lengths)
    nearby = (np.array(list(np.ndindex(3, 3, 3))) - 1) * pbc
    edges = set()
    for i, position in enumerate(positions):
        delta = position - positions[:, None]
        shifts = np.round(delta / cell) * pbc + nearby
        near = np.linalg.norm(delta - shifts * cell, axis=2) < cutoff
        senders = near.nonzero()[0].tolist()
        found = zip(senders, shifts[near].astype(int).tolist(), strict=True)
        edges |= {(i, j, *shift) for j, shift in found if i != j or any(shift)}
    return edges
