"""Minimization and initial velocities."""

from __future__ import annotations

import numpy as np
import pytest
from ase import Atoms, units
from ase.build import molecule

from mlff_triton.dynamics.preparation import draw_momenta, minimize
from tests.support.springs import Springs


@pytest.mark.parametrize("name", ["CH3CH2OH", "CO2", "H2", "H"])
def test_momenta_are_at_rest_as_a_whole(name):
    atoms = molecule(name) if name != "H" else Atoms("H")
    draw_momenta(atoms, 300, np.random.default_rng(1))
    assert atoms.get_kinetic_energy() > 0
    if len(atoms) > 1:
        np.testing.assert_allclose(atoms.get_momenta().sum(axis=0), 0, atol=1e-12)
        np.testing.assert_allclose(atoms.get_angular_momentum(), 0, atol=1e-12)


def test_momenta_have_the_temperature():
    atoms = molecule("CH3CH2OH")
    rng = np.random.default_rng(2)
    energies = []
    for _ in range(2000):
        draw_momenta(atoms, 300, rng)
        energies.append(atoms.get_kinetic_energy())
    freedom = 3 * len(atoms) - 6
    assert np.mean(energies) == pytest.approx(0.5 * freedom * units.kB * 300, rel=0.02)
    assert np.var(energies) == pytest.approx(0.5 * freedom * (units.kB * 300) ** 2, rel=0.15)


def test_minimization_finds_the_anchors():
    atoms = molecule("CH3CH2OH")
    atoms.calc = Springs(atoms.positions)
    atoms.positions += 0.1
    *_, last = minimize(atoms)
    assert last.converged
    np.testing.assert_allclose(atoms.positions, atoms.calc.anchors, atol=0.01)
