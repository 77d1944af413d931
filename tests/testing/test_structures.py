"""Random structures: reproducibility, density and distances."""

from __future__ import annotations

import numpy as np
import pytest
from ase.neighborlist import neighbor_list

from mlff_triton.errors import InputError
from mlff_triton.testing import (
    random_cluster,
    random_crystal,
    random_rotation,
    water_box,
)


@pytest.mark.parametrize("n_atoms", [1, 2, 63])
def test_clusters_are_seeded_and_not_too_dense(n_atoms):
    atoms = random_cluster(n_atoms, ["O", "H"], seed=3, min_distance=0.9)
    assert atoms == random_cluster(n_atoms, ["O", "H"], seed=3, min_distance=0.9)
    assert len(atoms) == n_atoms
    assert not atoms.pbc.any()
    assert len(neighbor_list("i", atoms, 0.9)) == 0
    assert n_atoms == 1 or set(atoms.symbols) == {"O", "H"}
    assert not np.array_equal(random_cluster(n_atoms, seed=4).positions, atoms.positions)


@pytest.mark.parametrize("kind", ["cubic", "triclinic", "small", "slab", "rod"])
@pytest.mark.parametrize("n_atoms", [1, 20])
def test_crystals_are_seeded_and_not_too_dense(kind, n_atoms):
    atoms = random_crystal(n_atoms, kind, seed=3)
    assert atoms == random_crystal(n_atoms, kind, seed=3)
    assert len(atoms) == n_atoms
    assert len(neighbor_list("i", atoms, 1.2)) == 0
    assert atoms.get_volume() == pytest.approx(4 * n_atoms * 1.2**3)
    heights = 1 / np.linalg.norm(np.linalg.inv(atoms.cell.array), axis=0)
    assert kind != "small" or heights.min() <= 1.8 + 1e-9


def test_unknown_crystals_are_refused():
    with pytest.raises(InputError, match="cubic, triclinic"):
        random_crystal(2, "hexagonal")


@pytest.mark.parametrize("n_molecules", [1, 8, 11, 64])
def test_water_is_water(n_molecules):
    atoms = water_box(n_molecules)
    assert atoms.get_chemical_symbols() == ["O", "H", "H"] * n_molecules
    oxygens, hydrogens = atoms.positions[::3], atoms.positions.reshape(-1, 3, 3)[:, 1:]
    bonds = hydrogens - oxygens[:, None]
    assert np.linalg.norm(bonds, axis=-1) == pytest.approx(0.9572)
    cosines = (bonds[:, 0] * bonds[:, 1]).sum(axis=-1) / 0.9572**2
    assert np.degrees(np.arccos(cosines)) == pytest.approx(104.52)
    assert len(neighbor_list("i", atoms, 1.1)) == 4 * n_molecules  # bonds only


def test_water_has_its_density():
    atoms = water_box(64)
    grams_per_mole, per_mole = atoms.get_masses().sum(), 6.02214076e23
    density = grams_per_mole / per_mole / (atoms.get_volume() * 1e-24)
    assert density == pytest.approx(1.0, rel=2e-3)


def test_rotations_are_proper(rng):
    for _ in range(20):
        turn = random_rotation(rng)
        assert turn @ turn.T == pytest.approx(np.eye(3), abs=1e-14)
        assert np.linalg.det(turn) == pytest.approx(1.0)
