"""Vibrations: frequencies that are known exactly, and those of ASE's own finite differences."""

from __future__ import annotations

import numpy as np
import pytest
from ase import Atoms, units
from ase.build import molecule
from ase.constraints import FixAtoms, FixBondLength
from ase.vibrations import Vibrations as AseVibrations

from mlff_triton import TensorNetCalculator
from mlff_triton.errors import InputError
from mlff_triton.statics import find_vibrations, relax

STIFFNESS = 30.0  # eV/Å^2
LENGTH = 1.2  # Å


class Bonds:
    """Harmonic bonds between consecutive atoms of a chain."""

    def __init__(self, sign=1):
        self.stiffness = sign * STIFFNESS

    def calculate_many(self, images):
        return [self._results(atoms.positions) for atoms in images]

    def _results(self, positions):
        bonds = np.diff(positions, axis=0)
        lengths = np.linalg.norm(bonds, axis=1, keepdims=True)
        pulls = self.stiffness * (lengths - LENGTH) * bonds / lengths
        forces = np.zeros_like(positions)
        forces[:-1] += pulls
        forces[1:] -= pulls
        energy = 0.5 * self.stiffness * float(((lengths - LENGTH) ** 2).sum())
        return {"energy": energy, "forces": forces}


def wave_number(curvature):
    """Return the wave number in 1/cm of a curvature in eV/Å^2/amu."""
    omega = np.sqrt(np.asarray(curvature) * units._e * 1e20 / units._amu)
    return omega / (200 * np.pi * units._c)


def chain(symbols):
    return Atoms(symbols, [(0, 0, LENGTH * k) for k in range(len(symbols))])


@pytest.fixture(scope="module")
def calculator():
    return TensorNetCalculator(device="cpu", dtype="float64")


@pytest.fixture(scope="module")
def water(calculator):
    atoms = molecule("H2O")
    *_, last = relax(atoms, calculator, fmax=1e-4)
    assert last.is_converged
    return find_vibrations(atoms, calculator)


def test_frequency_of_two_atoms():
    atoms = chain(["C", "O"])
    carbon, oxygen = atoms.get_masses()
    found = find_vibrations(atoms, Bonds())
    expected = wave_number(STIFFNESS * (1 / carbon + 1 / oxygen))
    np.testing.assert_allclose(found.frequencies, [expected], rtol=1e-6)
    assert found.zero_point_energy == pytest.approx(0.5 * expected * units.invcm)
    assert found.max_force < 1e-12
    along = found.modes[0, :, 2]
    np.testing.assert_allclose(along[0] * carbon, -along[1] * oxygen)
    assert np.linalg.norm(along) == pytest.approx(1)


def test_stretches_of_a_linear_molecule():
    """See Herzberg, Molecular Spectra and Molecular Structure II, for the two frequencies."""
    found = find_vibrations(chain("OCO"), Bonds())
    oxygen, carbon = 15.999, 12.011
    assert len(found.frequencies) == 4
    np.testing.assert_allclose(found.curvatures[:2], 0, atol=1e-3)  # bends, without any stiffness
    expected = [STIFFNESS / oxygen, STIFFNESS * (1 / oxygen + 2 / carbon)]
    np.testing.assert_allclose(found.frequencies[2:].real, wave_number(expected), rtol=1e-5)


def test_frequencies_are_those_of_ase(water, calculator, tmp_path):
    atoms = water.atoms.copy()
    atoms.calc = calculator
    theirs = AseVibrations(atoms, name=str(tmp_path / "vib"))
    theirs.run()
    assert len(water.frequencies) == 3
    np.testing.assert_allclose(
        water.frequencies.real, theirs.get_frequencies()[-3:].real, rtol=1e-4
    )


@pytest.mark.gpu
def test_frequencies_on_a_gpu_are_those_on_a_cpu(water):
    on_gpu = TensorNetCalculator(device="cuda", dtype="float64")
    found = find_vibrations(water.atoms, on_gpu)
    np.testing.assert_allclose(found.frequencies.real, water.frequencies.real, rtol=1e-4)


def test_an_ideal_gas_of_water(water):
    """The entropy of the real gas is 188.8 J/mol/K at 298.15 K, in the CODATA tables."""
    gas = water.ideal_gas(298.15, symmetry_number=2)
    assert gas.entropy / units.J * units.mol == pytest.approx(188.8, abs=0.5)
    heat = gas.enthalpy - water.energy - water.zero_point_energy
    assert heat == pytest.approx(4 * units.kB * 298.15, rel=1e-2)
    assert gas.gibbs_energy == pytest.approx(gas.enthalpy - 298.15 * gas.entropy)


def test_an_atom_has_no_vibration():
    found = find_vibrations(Atoms("C"), Bonds())
    assert (len(found.frequencies), found.zero_point_energy) == (0, 0)
    assert found.ideal_gas(300).enthalpy == pytest.approx(2.5 * units.kB * 300)


def test_imaginary_modes_are_counted():
    found = find_vibrations(chain("CO"), Bonds(sign=-1))
    assert found.n_imaginary == 1
    assert found.frequencies[0].real == 0
    assert found.frequencies[0].imag > 1000
    assert found.zero_point_energy == 0
    with pytest.raises(InputError, match="without imaginary modes"):
        found.ideal_gas(300)


def test_a_crystal_keeps_its_rotations():
    atoms = chain("CO")
    atoms.set_cell([5, 5, 5])
    atoms.pbc = True
    found = find_vibrations(atoms, Bonds())
    assert len(found.frequencies) == 3
    with pytest.raises(InputError, match="periodic"):
        found.ideal_gas(300)


def test_many_displacements_are_computed_in_parts():
    symbols = ["C"] * 90
    done = []
    found = find_vibrations(chain(symbols), Bonds(), progress=done.append)
    assert done == [512, 540]
    longest = wave_number(STIFFNESS / 12.011 * 4)  # of an endless chain
    assert 0.99 * longest < found.frequencies[-1].real < longest


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0}, "temperature must be a positive number, not 0"),
        ({"temperature": 300, "pressure": -1}, "pressure must be a positive number, not -1"),
        ({"temperature": 300, "symmetry_number": 0}, "symmetry number 0"),
        ({"temperature": 300, "spin": 0.3}, "spin 0.3"),
    ],
)
def test_wrong_options_are_refused(options, message):
    found = find_vibrations(chain("CO"), Bonds())
    with pytest.raises(InputError, match=message):
        found.ideal_gas(**options)


@pytest.mark.parametrize("displacement", [0, -0.1, float("nan")])
def test_a_wrong_displacement_is_refused(displacement):
    with pytest.raises(InputError, match="displacement must be a positive number"):
        find_vibrations(chain("CO"), Bonds(), displacement)


@pytest.mark.parametrize("fixed", [[0], [0, 3], [0, 1, 2, 5]])
@pytest.mark.parametrize("is_periodic", [False, True])
def test_fixed_atoms_are_left_out_as_by_ase(calculator, tmp_path, fixed, is_periodic):
    atoms = molecule("CH3CH2OH")
    if is_periodic:
        atoms.set_cell([8, 8, 8])
        atoms.pbc = True
    *_, last = relax(atoms, calculator)
    assert last.is_converged
    atoms.set_constraint(FixAtoms(fixed))
    found = find_vibrations(atoms, calculator)
    atoms.calc = calculator
    reference = AseVibrations(atoms, name=str(tmp_path / "vib"))
    reference.run()
    data = reference.get_vibrations()
    n_moving = 9 - len(fixed)
    assert found.hessian.shape == (3 * n_moving, 3 * n_moving)
    hessian = data.get_hessian_2d()
    np.testing.assert_allclose(found.hessian, (hessian + hessian.T) / 2, atol=2e-4)
    stiff = found.curvatures > 0.5
    expected = np.sort(reference.get_frequencies().real)[-int(stiff.sum()) :]
    np.testing.assert_allclose(found.frequencies[stiff].real, expected, rtol=1e-4)
    assert len(found.frequencies) == 3 * n_moving == len(reference.get_frequencies())
    assert found.modes.shape == (3 * n_moving, 9, 3)
    assert not found.modes[:, fixed].any()
    np.testing.assert_allclose(np.linalg.norm(found.modes, axis=(1, 2)), 1)


def test_forces_on_fixed_atoms_do_not_count():
    atoms = chain("CCC")
    atoms.positions[0, 2] -= 0.3
    atoms.set_constraint(FixAtoms([0, 1]))
    found = find_vibrations(atoms, Bonds())
    assert found.max_force < 1e-12
    expected = wave_number(STIFFNESS / atoms.get_masses()[2])
    assert found.frequencies[-1] == pytest.approx(expected, rel=1e-6)


def test_constraints_that_vibrations_do_not_know(calculator):
    atoms = molecule("H2O")
    atoms.set_constraint(FixBondLength(0, 1))
    with pytest.raises(InputError, match="the constraint FixBondLengths is not supported"):
        find_vibrations(atoms, calculator)
    atoms.set_constraint(FixAtoms([0]))
    found = find_vibrations(atoms, calculator)
    with pytest.raises(InputError, match="fix no atoms"):
        found.ideal_gas(300)


@pytest.mark.parametrize(("fixed", "n_turns"), [([0], 3), ([0, 1], 1), ([0, 1, 2], 0)])
def test_molecules_turn_about_fixed_atoms_without_a_frequency(calculator, fixed, n_turns):
    """Rounding and small forces would make such modes imaginary."""
    atoms = molecule("CH3CH2OH")
    atoms.set_constraint(FixAtoms(fixed))
    assert [*relax(atoms, calculator)][-1].is_converged
    found = find_vibrations(atoms, calculator)
    assert (found.curvatures == 0).sum() == n_turns
    assert found.n_imaginary == 0
    atoms.pbc = True
    atoms.set_cell([9, 9, 9])
    assert (find_vibrations(atoms, calculator).curvatures != 0).all()


def test_a_structure_is_displaced_along_a_mode():
    found = find_vibrations(chain("CCC"), Bonds())
    moved = found.displaced(-1, 0.2).positions - found.atoms.positions
    assert np.linalg.norm(moved, axis=1).max() == pytest.approx(0.2)
    np.testing.assert_allclose(moved / np.linalg.norm(moved), found.modes[-1], atol=1e-12)
