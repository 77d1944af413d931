"""Neighbor lists against ASE and brute force; Verlet lists against fresh ones."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from ase.neighborlist import primitive_neighbor_list
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mlff_triton.errors import InputError, OverlappingAtomsError
from mlff_triton.neighbors.box import Box
from mlff_triton.neighbors.graph import Graph
from mlff_triton.neighbors.neighbor_list import MIN_DISTANCE, neighbor_list
from mlff_triton.neighbors.verlet_list import VerletList
from mlff_triton.testing import random_cluster, random_crystal, random_rotation, water_box
from tests.support.graphs import assert_equal, assert_valid, edges_of

CUBE = 3.0 * np.eye(3)


@st.composite
def structures(draw):
    """(positions, cutoff, cell, pbc) without a distance that rounding could put on either side."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    lengths = draw(st.tuples(*[st.floats(1.0, 9.0)] * 3))
    skew = draw(st.sampled_from([0.0, 0.3, 1.5]))
    cell = np.diag(lengths) + np.tril(rng.uniform(-skew, skew, (3, 3)), -1) * min(lengths)
    if draw(st.booleans()):
        cell = cell[::-1] @ random_rotation(rng)  # left-handed, in any direction
    n_atoms = draw(st.integers(1, 5))
    outside = draw(st.sampled_from([0, 1, 3]))  # whole cells
    positions = (
        rng.random((n_atoms, 3)) + rng.integers(-outside, outside + 1, (n_atoms, 3))
    ) @ cell
    cutoff = draw(st.floats(0.5, 5.0))
    pbc = draw(st.tuples(*[st.booleans()] * 3))
    distances = np.array([*brute_force(positions, cutoff + 1.0, cell, pbc).values()])
    assume(not (np.abs(distances - cutoff) < 1e-9).any())
    assume(not (distances < 2 * MIN_DISTANCE).any())
    return positions, cutoff, cell, pbc


def brute_force(positions, cutoff, cell, pbc) -> dict[tuple[int, ...], float]:
    """Distance of every edge (i, j, Sx, Sy, Sz), by trying all translations that could matter."""
    heights = 1 / np.linalg.norm(np.linalg.inv(cell), axis=0)
    fractional = positions @ np.linalg.inv(cell)
    reach = (np.ceil(cutoff / heights + np.ptp(fractional, axis=0)) * pbc).astype(int)
    shifts = np.array(list(np.ndindex(*(2 * reach + 1)))) - reach
    translations = shifts @ cell
    edges = {}
    for i, j in np.ndindex(len(positions), len(positions)):
        distances = np.linalg.norm(positions[i] - positions[j] - translations, axis=1)
        for k in np.flatnonzero(distances < cutoff):
            if i != j or shifts[k].any():
                edges[(i, j, *shifts[k].tolist())] = distances[k]
    return edges


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
    assert ours == pytest.approx(-vectors[order], abs=1e-12)  # ASE's point from i to j


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


@pytest.mark.parametrize("constant", [1.1, 2.5, 2.7, 7 / 3])
@pytest.mark.parametrize("shell", [1, 2, 2**0.5, 3**0.5, 5**0.5])
def test_lattices_with_shells_at_the_cutoff_are_the_same_with_a_skin(constant, shell, rng):
    for turn in (np.eye(3), random_rotation(rng)):
        cell = constant * turn
        positions = np.array([[0.2, 0.3, 0.4], [0.7, 0.3, 0.4], [0.2, 0.8, 0.9]]) @ cell
        fresh = neighbor_list(positions, constant * shell, cell, True)
        assert_equal(VerletList(constant * shell).update(positions, cell, True), fresh)


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


def test_box_is_completed_to_a_basis():
    box = Box.of([[3.0, 1.0, 0.0], [9.0, 9.0, 9.0], [0.0, 0.0, 2.0]], [True, False, True])
    assert box.cell[[0, 2]].tolist() == [[3.0, 1.0, 0.0], [0.0, 0.0, 2.0]]
    assert np.linalg.norm(box.cell[1]) == pytest.approx(1.0)
    assert box.cell[[0, 2]] @ box.cell[1] == pytest.approx([0.0, 0.0], abs=1e-14)
    assert box.heights == pytest.approx([10**0.5, 1.0, 2.0])


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


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        ([3.0, 3.0, 3.0], r"shape \[3, 3\]"),
        (np.full((3, 3), np.nan), "NaN"),
        (np.diag([3.0, np.inf, 3.0]), "NaN or infinity"),
        (None, "no independent cell vector"),
        (np.diag([3.0, 0.0, 3.0]), "no independent cell vector"),
        ([[1.0, 0, 0], [2.0, 0, 0], [0, 0, 1.0]], "no independent cell vector"),
        ([[1.0, 0, 0], [1.0, 1e-13, 0], [0, 0, 1.0]], "check its units"),
        (np.eye(3) * 3e-10, "check its units"),
    ],
)
def test_cells_that_cannot_be_are_refused(cell, reason):
    for search in (neighbor_list, lambda p, c, *box: VerletList(c).update(p, *box)):
        with pytest.raises(InputError, match=reason):
            search(np.zeros((1, 3)), 3.0, cell, True)


def test_periodicity_of_wrong_shape_is_refused():
    with pytest.raises(InputError, match="pbc"):
        neighbor_list([[0.0, 0.0, 0.0]], 3.0, CUBE, [True, False])


@pytest.mark.parametrize("cutoff", [0.0, -1.0, np.nan, np.inf])
def test_impossible_cutoffs_are_refused(cutoff):
    with pytest.raises(InputError, match="cutoff"):
        neighbor_list([[0.0, 0.0, 0.0]], cutoff)
    with pytest.raises(InputError, match="cutoff"):
        VerletList(cutoff)


@pytest.mark.parametrize("skin", [-0.1, np.nan, np.inf])
def test_impossible_skins_are_refused(skin):
    with pytest.raises(InputError, match="skin"):
        VerletList(3.0, skin)


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
    """In an interpreter of its own: a search that overflows may kill it, or never end."""
    code = FLOWN_OFF.format(pbc=pbc, n_edges=n_edges)
    done = subprocess.run(  # noqa: S603 - the code is above
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=False
    )
    assert done.returncode == 0, done.stderr


def walk(kind: str, n_steps: int, strain: float, seed: int = 0):
    """Positions, cell and periodicity along a random walk of atoms and cell."""
    rng = np.random.default_rng(seed)
    atoms = random_cluster(30) if kind == "vacuum" else random_crystal(30, kind)
    for _ in range(n_steps):
        deformation = np.eye(3) + rng.normal(0, strain, (3, 3))
        atoms.set_cell(atoms.cell.array @ deformation)
        atoms.positions = atoms.positions @ deformation
        atoms.positions += rng.normal(0, 0.015, atoms.positions.shape)
        yield atoms.positions, atoms.cell.array, atoms.pbc


@pytest.mark.parametrize("strain", [0.0, 5e-4])
@pytest.mark.parametrize("kind", ["vacuum", "cubic", "triclinic", "small", "slab", "rod"])
def test_verlet_list_equals_a_fresh_one_at_every_step(kind, strain):
    verlet, n_steps = VerletList(3.0, skin=0.6), 100
    for positions, cell, pbc in walk(kind, n_steps, strain):
        assert_equal(verlet.update(positions, cell, pbc), neighbor_list(positions, 3.0, cell, pbc))
    assert 1 < verlet.n_builds < n_steps / 5


@settings(max_examples=100)
@given(
    structures(),
    st.integers(0, 2**32 - 1),
    st.floats(0.0, 1.5),
    st.floats(0.0, 1.0),
    st.sampled_from([0.0, 0.01, 0.1, 0.3]),
)
def test_verlet_list_is_exact_for_any_two_steps(structure, seed, skin, length, strain):
    positions, cutoff, cell, pbc = structure
    rng = np.random.default_rng(seed)
    verlet = VerletList(cutoff, skin)
    verlet.update(positions, cell, pbc)
    deformation = np.eye(3) + rng.uniform(-strain, strain, (3, 3))
    moves = rng.normal(size=positions.shape)
    moves *= length * skin / np.linalg.norm(moves, axis=1, keepdims=True)
    after = positions @ deformation + moves, cell @ deformation, pbc
    distances = np.array([*brute_force(after[0], cutoff + 1.0, *after[1:]).values()])
    assume(not (np.abs(distances - cutoff) < 1e-9).any())
    assume(not (distances < 2 * MIN_DISTANCE).any())
    assert_equal(verlet.update(*after), neighbor_list(after[0], cutoff, *after[1:]))


def line(*x: float) -> np.ndarray:
    """Atoms along x."""
    return np.array([[value, 0.0, 0.0] for value in x])


def test_one_atom_may_use_the_whole_skin():
    verlet = VerletList(2.0, skin=1.0)
    assert verlet.update(line(0.0, 3.01), None, False).n_edges == 0
    assert verlet.update(line(0.0, 2.02), None, False).n_edges == 0
    assert verlet.n_builds == 1
    assert verlet.update(line(0.0, 1.99), None, False).n_edges == 2
    assert verlet.n_builds == 2


def test_two_atoms_may_use_half_the_skin_each():
    verlet = VerletList(2.0, skin=1.0)
    assert verlet.update(line(0.0, 3.01), None, False).n_edges == 0
    assert verlet.update(line(0.49, 2.52), None, False).n_edges == 0
    assert verlet.n_builds == 1
    assert verlet.update(line(0.51, 2.5), None, False).n_edges == 2
    assert verlet.n_builds == 2


def test_one_atom_of_many_moves_through_all_others():
    rng = np.random.default_rng(0)
    atoms = water_box(8)
    verlet = VerletList(3.0, skin=0.5)
    for _ in range(40):
        atoms.positions[5] += rng.normal(0, 0.1, 3)
        arguments = atoms.cell.array, atoms.pbc
        fresh = neighbor_list(atoms.positions, 3.0, *arguments)
        assert_equal(verlet.update(atoms.positions, *arguments), fresh)
    assert verlet.n_builds < 40


def test_a_shrinking_cell_brings_pairs_in_without_relative_motion():
    fractional = np.array([[0.0, 0.0, 0.0], [0.5, 0.0, 0.0]])
    verlet = VerletList(2.0, skin=0.5)
    for scale, n_edges in ((5.2, 0), (4.2, 0), (3.9, 4)):  # two images of the other atom each
        cell = np.diag([scale, 9.0, 9.0])
        assert verlet.update(fractional @ cell, cell, True).n_edges == n_edges


def test_a_shrinking_cell_brings_images_in_while_atoms_stand_still():
    verlet = VerletList(2.0, skin=0.5)
    for length, n_edges in ((2.6, 0), (2.1, 0), (1.9, 2)):
        cell = np.diag([length, 9.0, 9.0])
        assert verlet.update(line(0.3), cell, True).n_edges == n_edges


def test_a_shearing_cell_brings_pairs_in():
    atoms = random_crystal(8, "cubic", seed=2)
    fractional = atoms.get_scaled_positions()
    verlet = VerletList(3.0, skin=0.4)
    for shear in np.linspace(0, 1, 30):
        cell = atoms.cell.array + shear * np.array([[0, 0, 0], [4, 0, 0], [0, 4, 0]])
        fresh = neighbor_list(fractional @ cell, 3.0, cell, True)
        assert_equal(verlet.update(fractional @ cell, cell, True), fresh)


def test_turning_atoms_and_cell_needs_no_new_list():
    atoms, rng = random_crystal(20), np.random.default_rng(0)
    verlet = VerletList(3.0, skin=0.5)
    for _ in range(5):
        turn = random_rotation(rng)
        positions, cell = atoms.positions @ turn, atoms.cell.array @ turn
        assert_equal(
            verlet.update(positions, cell, True), neighbor_list(positions, 3.0, cell, True)
        )
    assert verlet.n_builds == 1


def test_a_wrapped_atom_gets_its_new_shifts():
    atoms = random_crystal(5)
    verlet = VerletList(3.0, skin=0.5)
    verlet.update(atoms.positions, atoms.cell.array, True)
    atoms.positions[3] += atoms.cell.array[1]
    fresh = neighbor_list(atoms.positions, 3.0, atoms.cell.array, True)
    assert_equal(verlet.update(atoms.positions, atoms.cell.array, True), fresh)


def test_other_atoms_or_periodicity_get_a_list_of_their_own():
    atoms = random_crystal(6, "cubic")
    verlet = VerletList(3.0, skin=0.5)
    for positions, pbc in (
        (atoms.positions, True),
        (atoms.positions, [True, True, False]),
        (atoms.positions[:4], [True, True, False]),
        (atoms.positions, False),
        (atoms.positions, True),
    ):
        fresh = neighbor_list(positions, 3.0, atoms.cell.array, pbc)
        assert_equal(verlet.update(positions, atoms.cell.array, pbc), fresh)


def test_arrays_changed_in_place_are_noticed():
    positions, cell = line(0.0, 3.2), np.diag([20.0, 20.0, 20.0])
    verlet = VerletList(2.0, skin=1.0)
    assert verlet.update(positions, cell, True).n_edges == 0
    positions[1, 0] = 1.0
    assert verlet.update(positions, cell, True).n_edges == 2
    cell[:] = 1.5 * np.eye(3)
    assert (
        verlet.update(positions, cell, True).n_edges
        == neighbor_list(positions, 2.0, cell, True).n_edges
    )


def test_without_a_skin_every_move_is_a_new_list():
    verlet = VerletList(2.0, skin=0.0)
    for step, x in enumerate((1.9, 2.1, 1.8)):
        expected = neighbor_list(line(0.0, x), 2.0)
        assert_equal(verlet.update(line(0.0, x), None, False), expected)
        assert verlet.n_builds == step + 1


def test_atoms_that_meet_are_refused_and_leave_the_list_sound():
    verlet = VerletList(2.0, skin=1.0)
    expected = verlet.update(line(0.0, 0.4), None, False)
    with pytest.raises(OverlappingAtomsError, match="the same point"):
        verlet.update(line(0.2, 0.2), None, False)
    with pytest.raises(OverlappingAtomsError, match="apart"):
        verlet.update(line(50.0, 50.0), None, False)
    with pytest.raises(InputError):
        verlet.update(line(0.0, np.nan), None, False)
    assert_equal(verlet.update(line(0.0, 0.4), None, False), expected)
