"""Integrators: temperature and conserved energy."""

from __future__ import annotations

import numpy as np
import pytest
from ase import Atoms, units
from ase.build import bulk
from ase.calculators.emt import EMT

from mlff_triton.dynamics import (
    Settings,
)
from mlff_triton.dynamics.integrators import make_integrator
from mlff_triton.dynamics.preparation import draw_momenta
from tests.support.springs import Springs


def test_nvt_reaches_the_temperature_and_counts_its_heat():
    atoms = Atoms("H8C8", np.random.default_rng(0).uniform(0, 5, (16, 3)))
    atoms.calc = Springs(atoms.positions)
    rng = np.random.default_rng(3)
    settings = Settings(temperature=400, friction=20, timestep=1)
    draw_momenta(atoms, 50, rng)
    integrator = make_integrator("nvt", atoms, settings, rng)
    start = integrator.conserved_energy()
    kinetic, potential = [], []
    for step in range(4000):
        integrator.step()
        if step > 500:
            kinetic.append(atoms.get_kinetic_energy())
            potential.append(atoms.get_potential_energy())
    expected = 1.5 * 16 * units.kB * 400
    assert np.mean(kinetic) == pytest.approx(expected, rel=0.05)
    assert np.mean(potential) == pytest.approx(expected, rel=0.05)
    assert abs(integrator.heat) > 0.5
    assert integrator.conserved_energy() == pytest.approx(start, abs=0.02 * expected)


@pytest.mark.parametrize(("ensemble", "tolerance"), [("nve", 2e-3), ("npt", 2e-3)])
def test_energy_is_conserved(ensemble, tolerance):
    atoms = bulk("Cu", cubic=True) * 2
    atoms.calc = EMT()
    settings = Settings(timestep=2)
    draw_momenta(atoms, 300, np.random.default_rng(4))
    volume = atoms.get_volume()
    integrator = make_integrator(ensemble, atoms, settings, np.random.default_rng(5))
    start = integrator.conserved_energy()
    for _ in range(100):
        integrator.step()
    assert integrator.conserved_energy() == pytest.approx(start, abs=tolerance)
    assert (atoms.get_volume() != volume) == (ensemble == "npt")
