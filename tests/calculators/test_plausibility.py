"""Structures that nobody means, and chemistry that the shipped model does not know."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule
from ase.io import read

from mlff_triton import Ensemble, TensorNetCalculator, load_model
from mlff_triton.errors import InputError
from mlff_triton.model.known_domain import (
    TENSORNET_GFN2,
    UnknownChemistryWarning,
    bond_name,
)
from mlff_triton.testing import water_box
from tests.support.tensornets import model_of

ROOT = Path(__file__).parents[2]
TRAINED_ON = ROOT / "examples" / "training" / "structures.xyz"


def without_hydrogen(atoms: Atoms) -> Atoms:
    return atoms[atoms.numbers != 1]


def azomethane() -> Atoms:
    atoms = molecule("trans-butane")
    carbons = np.flatnonzero(atoms.numbers == 6)
    center = [c for c in carbons if (atoms.get_distances(c, carbons) < 1.7).sum() == 3]
    lost = [
        h for h in np.flatnonzero(atoms.numbers == 1) if atoms.get_distances(h, center).min() < 1.3
    ]
    atoms.numbers[center] = 7
    del atoms[lost]
    return atoms


UNKNOWN = {
    "diamond": (bulk("C", cubic=True), "no bond like that of atoms"),
    "oxygen": (Atoms("O2", [[0, 0, 0], [0, 0, 1.21]]), "O bonded to O and O bonded to O"),
    "azo compound": (azomethane(), "N bonded to C, N"),
    "protein without hydrogen": (without_hydrogen(molecule("CH3CH2OH")), "PDBFixer"),
    "radical": (molecule("CH3"), "9 electrons, an odd number"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown_chemistry_is_warned_of_once(name):
    atoms, message = UNKNOWN[name]
    atoms = atoms.copy()
    atoms.calc = TensorNetCalculator(device="cpu")
    with pytest.warns(UnknownChemistryWarning, match=message) as caught:
        atoms.get_potential_energy()
    assert len(caught) == 1
    assert "\n" not in str(caught[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        atoms.positions += 0.01 * np.sin(np.arange(3.0 * len(atoms))).reshape(-1, 3)
        atoms.get_potential_energy()
        atoms.calc.get_potential_energy(atoms[::-1])


@pytest.mark.parametrize("name", ["CH3CH2OH", "C6H6", "H2O", "CH3CONH2", "C3H4_D2d", "CO2", "N2"])
def test_known_molecules_pass(name):
    TensorNetCalculator(device="cpu").get_potential_energy(molecule(name))


def test_known_liquids_pass():
    TensorNetCalculator(device="cpu").get_potential_energy(water_box(8))


def test_models_without_a_record_do_not_warn():
    calc = TensorNetCalculator(model_of(num_layers=1), device="cpu")
    assert calc.session.engine.known_domain is None
    calc.get_potential_energy(molecule("CH3"))


def test_the_record_belongs_to_the_shipped_model():
    model = load_model("default")
    assert model.known_domain is TENSORNET_GFN2
    assert Ensemble([model, model]).known_domain is TENSORNET_GFN2
    other = model_of()
    assert Ensemble([model, other]).known_domain is other.known_domain is None


def test_the_record_holds_all_bonds_of_the_training_molecules():
    trained, unknown = set(), set()
    for atoms in read(TRAINED_ON, ":"):
        symbols = atoms.get_chemical_symbols()
        neighbors: list[list[str]] = [[] for _ in symbols]
        pairs = [tuple(map(int, pair.split("-"))) for pair in str(atoms.info["bonds"]).split()]
        for i, j in pairs:
            neighbors[i].append(symbols[j])
            neighbors[j].append(symbols[i])
        bonds = {bond_name(symbols[i], neighbors[i], symbols[j], neighbors[j]) for i, j in pairs}
        if atoms.info["split"] == "train":
            trained |= bonds
        elif not bonds <= TENSORNET_GFN2.bonds:
            unknown.add(atoms.info["name"])
    assert trained == TENSORNET_GFN2.bonds
    assert unknown == {"azobenzene", "acetoxime"}


@pytest.mark.parametrize("model", ["default", model_of(num_layers=1)])
def test_nanometers_read_as_angstrom_are_refused(model):
    atoms = molecule("CH3CH2OH")
    calc = TensorNetCalculator(model, device="cpu")
    expected = calc.get_potential_energy(atoms)
    small = atoms.copy()
    small.positions /= 10
    fresh = TensorNetCalculator(model, device="cpu")
    with pytest.raises(InputError, match=r"are only 0\.\d+ Å apart: check .* not nm"):
        fresh.get_potential_energy(small)
    assert fresh.get_potential_energy(atoms) == expected
