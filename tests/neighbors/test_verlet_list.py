"""Verlet lists, which equal fresh neighbor lists at every step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mlff_triton.errors import InputError, OverlappingAtomsError
from mlff_triton.neighbors.neighbor_list import MIN_DISTANCE, neighbor_list
from mlff_triton.neighbors.verlet_list import VerletList
from mlff_triton.testing import random_cluster, random_crystal, random_rotation, water_box
from tests.support.graphs import assert_equal
from tests.support.periodic_structures import brute_force, structures


@pytest.mark.parametrize("constant", [1.1, 2.5, 2.7, 7 / 3])
@pytest.mark.parametrize("shell", [1, 2, 2**0.5, 3**0.5, 5**0.5])
def test_lattices_with_shells_at_the_cutoff_are_the_same_with_a_skin(constant, shell, rng):
    for turn in (np.eye(3), random_rotation(rng)):
        cell = constant * turn
        positions = np.array([[0.2, 0.3, 0.4], [0.7, 0.3, 0.4], [0.2, 0.8, 0.9]]) @ cell
        fresh = neighbor_list(positions, constant * shell, cell, True)
        assert_equal(VerletList(constant * shell).update(positions, cell, True), fresh)


@pytest.mark.parametrize("skin", [-0.1, np.nan, np.inf])
def test_impossible_skins_are_refused(skin):
    with pytest.raises(InputError, match="skin"):
        VerletList(3.0, skin)


def walk(kind: str, n_steps: int, strain: float, seed: int = 0):
    """Return positions, cell and periodicity along a random walk of the atoms and the cell."""
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


def test_list_of_all_pairs_is_built_once():
    verlet = VerletList(np.inf)
    for positions, cell, pbc in walk("vacuum", 20, 0.0):
        assert_equal(verlet.update(positions, cell, pbc), neighbor_list(positions, np.inf))
    assert verlet.n_builds == 1
    with pytest.raises(OverlappingAtomsError, match="same point"):
        verlet.update(np.zeros_like(positions), None, False)
    assert verlet.update(positions[:3], None, False).n_edges == 6


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
    """Place atoms along x."""
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
    for scale, n_edges in ((5.2, 0), (4.2, 0), (3.9, 4)):  # two images of the other atom for each
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
