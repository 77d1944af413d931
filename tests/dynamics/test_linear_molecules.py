"""Degrees of freedom of linear molecules, diatomic ones and single atoms."""

from __future__ import annotations

import numpy as np
import pytest
from ase import Atoms, units
from ase.build import molecule
from ase.calculators.calculator import Calculator, all_changes

from mlff_triton.dynamics import Settings, Simulation, Stage
from mlff_triton.dynamics.outputs import LOG, names
from mlff_triton.dynamics.preparation import draw_momenta
from mlff_triton.errors import InputError
from tests.support.springs import Springs


class LinearMolecule(Calculator):
    """CO2 with the carbon first: springs for both bonds, and one for their angle."""

    implemented_properties = ("energy", "forces")
    stretch, bend, length = 60.0, 4.0, 1.17  # eV/Å^2, eV, Å

    def calculate(self, atoms=None, properties=("energy",), system_changes=tuple(all_changes)):
        super().calculate(atoms, properties, system_changes)
        self.results = self.calculate_many([self.atoms])[0]

    def calculate_many(self, systems):
        positions = np.stack([atoms.positions for atoms in systems])
        arms = positions[:, 1:] - positions[:, :1]
        lengths = np.linalg.norm(arms, axis=2, keepdims=True)
        axes, longer = arms / lengths, lengths - self.length
        bent = axes.sum(axis=1, keepdims=True)
        energies = self.stretch * (longer**2).sum((1, 2)) + self.bend * (bent**2).sum((1, 2))
        turning = self.bend * (bent - axes * (axes * bent).sum(2, keepdims=True)) / lengths
        slopes = turning + self.stretch * longer * axes
        forces = np.concatenate([slopes.sum(1, keepdims=True), -slopes], axis=1)
        return [
            {"energy": 0.5 * float(energy), "forces": force}
            for energy, force in zip(energies, forces, strict=True)
        ]


@pytest.mark.parametrize(
    ("thermostat", "potential", "kinetic"), [("rescaling", 1.5, 1.5), ("langevin", 2.0, 4.5)]
)
def test_vibrations_of_a_linear_molecule_have_the_temperature(
    tmp_path, thermostat, potential, kinetic
):
    """Without angular momentum, CO2 bends in one plane, and has three vibrations, not four."""
    atoms = Atoms("CO2", [[0, 0, 0], [0, 0, 1.17], [0, 0, -1.17]])
    settings = Settings(
        stages=(Stage("nvt", 500),),
        timestep=1.0,
        thermostat=thermostat,
        friction=50.0,
        thermostat_time=20.0,
        every=500,
        log_every=10,
    )
    run = Simulation.start([atoms] * 20, LinearMolecule(), settings, tmp_path / "run")
    run.run()
    logs = [
        np.genfromtxt(tmp_path / "run" / name, delimiter=",", names=True, dtype=None)[20:]
        for name in names(LOG, 20)
    ]
    kt = 300 * units.kB
    assert np.mean([log["potential_eV"] for log in logs]) / kt == pytest.approx(potential, abs=0.3)
    assert np.mean([log["kinetic_eV"] for log in logs]) / kt == pytest.approx(kinetic, abs=0.3)


@pytest.mark.parametrize("name", ["CO2", "HCN", "C2H2", "N2"])
@pytest.mark.parametrize("rounding", [0.0, 3e-8, 1e-7, 1e-6, 1e-4])
def test_momenta_of_molecules_that_are_almost_linear_turn_nothing(name, rounding):
    """Files round positions, so that a rotation about the axis moves almost nothing."""
    rng = np.random.default_rng(1)
    for _ in range(10):
        atoms = molecule(name)
        atoms.rotate(rng.uniform(0, 360), rng.normal(size=3))
        atoms.positions += rng.normal(0, 1, 3) + rounding * rng.normal(size=(len(atoms), 3))
        draw_momenta(atoms, 300, rng)
        np.testing.assert_allclose(atoms.get_momenta().sum(axis=0), 0, atol=1e-9)
        np.testing.assert_allclose(atoms.get_angular_momentum(), 0, atol=1e-3)
        assert atoms.get_kinetic_energy() < 40 * 0.5 * 300 * units.kB


@pytest.mark.parametrize("name", ["H", "N2"])
def test_what_is_too_small_to_rescale_is_refused_in_vacuum_only(tmp_path, name):
    atoms = Atoms("H") if name == "H" else molecule(name)
    settings = Settings(stages=(Stage("nvt", 3),), thermostat="rescaling", every=1)
    with pytest.raises(InputError, match="three degrees of freedom or more: use langevin"):
        Simulation.start(atoms, Springs(atoms.positions), settings, tmp_path / "run")
    langevin = Settings(stages=(Stage("nvt", 3), Stage("nve", 3)), every=1)
    run = Simulation.start(atoms, Springs(atoms.positions), langevin, tmp_path / "langevin")
    assert run.run()
    assert run.atoms.get_kinetic_energy() > 0
    if name == "N2":
        atoms.set_cell([9, 9, 9])
        atoms.pbc = True
        assert Simulation.start(atoms, Springs(atoms.positions), settings, tmp_path / "cell").run()
