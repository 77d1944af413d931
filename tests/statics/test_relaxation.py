"""Relaxation of atoms and cells by ASE's optimizers."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, fcc111, molecule
from ase.calculators.calculator import Calculator, all_changes
from ase.calculators.emt import EMT
from ase.constraints import FixAtoms, FixBondLength, FixScaled

from mlff_triton import TensorNetCalculator
from mlff_triton.errors import InputError
from mlff_triton.model.known_domain import UnknownChemistryWarning
from mlff_triton.statics import relax


@pytest.mark.parametrize("optimizer", ["lbfgs", "fire"])
def test_a_molecule_comes_to_rest(optimizer):
    atoms = molecule("H2O")
    history = list(relax(atoms, TensorNetCalculator(device="cpu"), optimizer=optimizer))
    assert [step.number for step in history] == list(range(len(history)))
    assert [step.is_converged for step in history] == [False] * (len(history) - 1) + [True]
    assert history[-1].max_force < 0.01 <= history[-2].max_force
    assert history[-1].energy < history[0].energy - 0.005
    largest = np.linalg.norm(atoms.get_forces(), axis=1).max()
    assert largest == history[-1].max_force
    assert atoms.get_potential_energy() == history[-1].energy


class Well(Calculator):
    """A Gaussian well around the origin, outside of whose waist the energy curves down."""

    implemented_properties = ("energy", "forces")

    def calculate(self, atoms=None, properties=("energy",), system_changes=tuple(all_changes)):
        super().calculate(atoms, properties, system_changes)
        energies = -np.exp(-0.5 * (self.atoms.positions**2).sum(axis=1))
        self.results = {
            "energy": float(energies.sum()),
            "forces": energies[:, None] * self.atoms.positions,
        }


@pytest.mark.parametrize("optimizer", ["lbfgs", "fire"])
@pytest.mark.parametrize("start", [1.2, 2.0, 3.0])
def test_no_optimizer_climbs_where_the_energy_curves_down(optimizer, start):
    atoms = Atoms("H", [[start, 0.1, 0]])
    history = list(relax(atoms, Well(), optimizer=optimizer, fmax=1e-3))
    energies = [step.energy for step in history]
    assert history[-1].is_converged
    assert energies[-1] == pytest.approx(-1, abs=1e-4)
    assert [step.number for step in history] == list(range(len(history)))


@pytest.mark.filterwarnings("ignore::mlff_triton.UnknownChemistryWarning")
@pytest.mark.parametrize("name", ["O2", "N2", "SiO"])
def test_molecules_end_below_where_they_begin(name):
    *_, last = history = list(relax(molecule(name), TensorNetCalculator(device="cpu"), steps=50))
    assert last.is_converged
    assert last.energy < history[0].energy
    short = list(relax(molecule(name), TensorNetCalculator(device="cpu"), steps=3))
    assert [step.energy for step in short] == [step.energy for step in history[:4]]


def test_a_cell_is_relaxed_too():
    atoms = bulk("Cu", a=3.7)
    *_, last = relax(atoms, EMT(), fmax=1e-3, cell=True)
    assert last.is_converged
    assert atoms.get_volume() == pytest.approx(3.59**3 / 4, rel=0.01)
    assert np.abs(atoms.get_stress()).max() < 1e-4


def test_relaxed_cells_of_models_of_molecules_are_warned_of():
    ice = molecule("H2O", cell=[4, 4, 4], pbc=True)
    calculator = TensorNetCalculator(device="cpu")
    with pytest.warns(UnknownChemistryWarning, match="densities of liquids and crystals") as found:
        relax(ice, calculator, cell=True)
    assert [Path(warning.filename).name for warning in found] == [Path(__file__).name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        relax(ice, calculator)
        relax(ice, EMT(), cell=True)


def test_steps_are_limited():
    history = list(relax(molecule("H2O"), TensorNetCalculator(device="cpu"), steps=1))
    assert [step.number for step in history] == [0, 1]
    assert not history[-1].is_converged


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "newton"}, "use one of lbfgs, fire"),
        ({"fmax": 0}, "fmax must be a positive number, not 0"),
        ({"fmax": float("nan")}, "fmax must be a positive number, not nan"),
        ({"steps": -1}, "steps=-1 must not be negative"),
        ({"cell": True}, "not periodic in 3D"),
    ],
)
def test_wrong_options_are_refused_at_once(options, message):
    with pytest.raises(InputError, match=message):
        relax(molecule("H2O"), None, **options)


@pytest.mark.parametrize("optimizer", ["lbfgs", "fire"])
def test_fixed_atoms_stay(optimizer):
    atoms = fcc111("Cu", (2, 2, 4), vacuum=8.0)
    atoms.rattle(0.05, seed=1)
    atoms.set_constraint(FixAtoms(mask=atoms.positions[:, 2] < 11))
    before = atoms.positions.copy()
    *_, last = relax(atoms, EMT(), optimizer=optimizer)
    assert last.is_converged
    np.testing.assert_array_equal(atoms.positions[:8], before[:8])
    assert (atoms.positions[8:] != before[8:]).all()
    forces = np.linalg.norm(atoms.get_forces(apply_constraint=False), axis=1)
    assert forces[:8].max() > 0.01 > forces[8:].max()
    assert last.max_force == forces[8:].max()


def test_fixed_atoms_stay_to_the_last_bit_whatever_fixes_them():
    """``FixScaled`` of ASE puts atoms back with errors of rounding."""
    atoms = bulk("Cu", orthorhombic=True).repeat((2, 1, 1))
    atoms.set_cell(atoms.cell.array * [1.0, 1.01, 1.02], scale_atoms=True)
    atoms.rattle(0.05, seed=1)
    given = [FixScaled([2, 3])]
    atoms.set_constraint(given)
    before = atoms.positions.copy()
    *_, last = relax(atoms, EMT())
    assert last.is_converged
    np.testing.assert_array_equal(atoms.positions[2:], before[2:])
    assert atoms.constraints == given


def test_other_constraints_are_refused_at_once():
    atoms = molecule("H2O")
    atoms.set_constraint(FixBondLength(0, 1))
    with pytest.raises(InputError, match="the constraint FixBondLengths is not supported"):
        relax(atoms, None)
