"""Structures that look wrong before the first step: other units, no neighbors, no bonds."""

from __future__ import annotations

import re

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, fcc111, molecule
from ase.collections import g2
from hypothesis import given
from hypothesis import strategies as st

from mlff_triton.calculators._plausibility import close_pairs
from mlff_triton.calculators._screening import BONDED, Screening, unlikely_structure
from mlff_triton.calculators._screening_many import plain_molecules
from mlff_triton.calculators._session import Session
from mlff_triton.engine.batch import Batch
from mlff_triton.errors import InputError, MlffTritonError
from mlff_triton.testing import water_box
from mlff_triton.units import BOHR
from tests.support.charged import charged_model

CUTOFF = 5.0


def look(atoms):
    batch = Batch.of(atoms.numbers, atoms.positions, atoms.cell.array, atoms.pbc)
    return unlikely_structure(batch, CUTOFF, close_pairs(batch, BONDED))


def scaled(atoms, factor):
    copy = atoms.copy()
    copy.set_cell(atoms.cell * factor)
    copy.positions = atoms.positions * factor
    return copy


LATTICES = ("Cu", "Na", "Cs", "W", "Si", "Mg", "Al", "Pb", "Pt", "Hg")
SOUND = {
    "water": water_box(8),
    "salt": bulk("NaCl", "rocksalt", a=5.64),
    "cesium chloride": bulk("CsCl", "cesiumchloride", a=4.12),
    "argon": bulk("Ar", a=5.26, cubic=True),
    "slab": fcc111("Pt", (2, 2, 3), vacuum=10),
    "atom": Atoms("O"),
    "ions in water": molecule("H2O") + Atoms("Cl", [[0, 0, 3.1]]) + Atoms("K", [[0, 0, -2.8]]),
    "short bonds": Atoms("Cr2", [[0, 0, 0], [0, 0, 1.68]]),
    "large": bulk("Cu", cubic=True) * (3, 3, 3),
} | {symbol: bulk(symbol) for symbol in LATTICES if symbol != "Hg"}


@pytest.mark.parametrize("name", SOUND)
def test_sound_structures_pass(name):
    assert look(SOUND[name]) == ""


def test_all_molecules_of_a_benchmark_pass():
    known = {name: look(molecule(name)) for name in g2.names}
    assert {name for name, doubt in known.items() if doubt} == set()


@pytest.mark.parametrize("name", ["CH3CH2OH", "C6H6", "SiH4", "water box", "silicon"])
def test_bohr_and_picometers_are_refused(name):
    cells = {"water box": water_box(8), "silicon": bulk("Si", cubic=True)}
    atoms = cells[name] if name in cells else molecule(name)
    with pytest.raises(InputError, match=r"in Bohr: multiply positions and cell by 0\.5292"):
        look(scaled(atoms, 1 / BOHR))
    with pytest.raises(InputError, match="no atom has a neighbor within 5 Å: check that"):
        look(scaled(atoms, 100))
    with pytest.raises(InputError, match=r"are only 0\.\d+ Å apart: check .* not nm"):
        look(scaled(atoms, 0.1))


@pytest.mark.parametrize("factor", [0.3, 0.45])
def test_less_than_half_a_bond_is_refused(factor):
    with pytest.raises(InputError, match=r"atoms 0 \(C\) and 1 \(O\) are only 0\.\d+ Å apart"):
        look(Atoms("CO", [[0, 0, 0], [0, 0, factor * 1.42]]))
    assert look(Atoms("CO", [[0, 0, 0], [0, 0, 0.55 * 1.42]])) == ""


def test_few_atoms_are_only_warned_of():
    """As dissociation curves have such points."""
    assert "in Bohr" in look(scaled(molecule("H2O"), 1 / BOHR))
    assert "no atom has a neighbor" in look(Atoms("N2", [[0, 0, 0], [0, 0, 9.0]]))


def test_atoms_without_neighbors_are_warned_of():
    far = molecule("CH3CH2OH") + Atoms("HO", [[0, 9, 0], [0, 19, 0]])
    assert look(far).startswith("2 atoms have no neighbors within 5 Å, as atom 9 (H): check")
    assert look(far[:-1]).startswith("atom 9 (H) has no neighbor within 5 Å, and no forces")
    assert look(molecule("CH3CH2OH") + Atoms("H", [[0, 4.5, 0]])) == ""


def test_boxes_that_a_model_cannot_compute_are_refused_for_what_they_are():
    """Also if some atom is alone, whose neighbors would be looked for at all distances."""
    screening = Screening(Session(charged_model(), "cpu"))
    salt = Atoms("HO", [[0, 0, 0], [0, 0, 4]], cell=[8, 8, 8], pbc=True)
    for atoms in (salt, Atoms("O", cell=[5, 5, 5], pbc=[True, True, False])):
        with pytest.raises(InputError, match=r"cannot be periodic: .* --coulomb pme of a command"):
            screening.look(atoms)


def test_images_are_neighbors():
    assert look(Atoms("Cu", cell=np.eye(3) * 4.0, pbc=True)) == ""
    assert "neighbor" in look(Atoms("CuCu", [[0, 0, 0], [0, 0, 9]], cell=[18] * 3, pbc=True))


@given(st.integers(0, 2**32 - 1))
def test_many_structures_are_looked_at_as_each_alone(seed):
    """Molecules that are stretched, squeezed, ionized, broken, periodic, or as they were."""
    rng = np.random.default_rng(seed)
    screening = Screening(Session("tensornet-gfn2", "cpu"))
    structures = []
    for name in rng.choice(["H2O", "CH3OH", "C6H6", "H", "SiH4", "O2", "CH3", "N2"], 12):
        atoms = molecule(name)
        atoms.positions *= rng.choice([1.0, 1.0, 1.0, 0.4, 0.53, 1.4, 4.0])
        atoms.positions += rng.normal(0, 0.05, atoms.positions.shape)
        if rng.random() < 0.2:
            atoms.info["charge"] = int(rng.integers(-1, 2))
        if rng.random() < 0.2:
            atoms.center(4.0)
            atoms.pbc = True
        structures.append(atoms)
    structures.append(Atoms("H2", [[0, 0, 0], [0, 0, np.nan]]))
    for _ in range(2):  # once more, as bonds are known then
        for found, atoms in zip(screening.look_at_many(structures), structures, strict=True):
            if isinstance(found, MlffTritonError):
                with pytest.raises(type(found), match=re.escape(str(found))):
                    screening.look(atoms)
            else:
                assert found == screening.look(atoms)


def test_usual_molecules_need_no_closer_look():
    session = Session("tensornet-gfn2", "cpu")
    structures = [molecule(name) for name in ("H2O", "CH3OH", "C6H6", "CH3OH")]
    structures[1].info["charge"] = 0
    structures[2].info["charge"] = np.int64(0)  # as read from extended XYZ
    Screening(session).look_at_many(structures)
    domain, elements = session.engine.known_domain, session.engine.elements
    assert all(plain_molecules(structures, domain, elements))
