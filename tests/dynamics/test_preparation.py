"""Minimization and initial velocities."""

from __future__ import annotations

import numpy as np
import pytest
from ase import Atoms, units
from ase.build import molecule

from mlff_triton.dynamics.host_dynamics import HostDynamics
from mlff_triton.dynamics.pace import Pace
from mlff_triton.dynamics.preparation import MAX_ITERATIONS, draw_momenta, minimize
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


class Molecules(Springs):
    """Springs of each molecule to its geometry in ASE's collection; counts evaluations."""

    def __init__(self):
        super().__init__(np.zeros((1, 3)))
        self.evaluations = 0

    def calculate(self, atoms=None, properties=("energy",), system_changes=("positions",)):
        self.anchors = molecule(atoms.info["name"]).positions
        self.evaluations += 1
        super().calculate(atoms, properties, system_changes)


def shaken(calculator: Molecules, *names: str) -> list[Atoms]:
    systems = []
    for k, name in enumerate(names):
        atoms = molecule(name)
        atoms.info["name"] = name
        atoms.rattle(0.05 * (k + 1), seed=k)
        atoms.calc = calculator
        systems.append(atoms)
    return systems


NAMES = "H2O", "CH3CH2OH", "C60"


def test_systems_are_minimized_together_as_if_alone():
    together = shaken(Molecules(), *NAMES)
    *_, last = minimize(together)
    assert last.converged
    iterations = []
    for k, atoms in enumerate(shaken(Molecules(), *NAMES)):
        *_, alone = minimize(atoms)
        iterations.append(alone.iterations)
        np.testing.assert_array_equal(together[k].positions, atoms.positions)
        assert alone.max_force <= last.max_force
    assert last.iterations == max(iterations) > min(iterations)


def test_systems_that_have_converged_are_not_computed_again():
    calculator = Molecules()
    *_, last = minimize(shaken(calculator, *NAMES), pace=Pace(1))
    alone = []
    for k in range(3):
        own = Molecules()
        list(minimize(shaken(own, *NAMES)[k], pace=Pace(1)))
        alone.append(own.evaluations)
    assert max(alone) == last.iterations + 1
    assert calculator.evaluations == sum(alone)


@pytest.mark.parametrize("block", [2, 7, 5000])
def test_blocks_do_not_change_a_minimum(block):
    one, other = shaken(Molecules(), *NAMES), shaken(Molecules(), *NAMES)
    *_, expected = minimize(one, pace=Pace(1))
    seen = list(minimize(other, HostDynamics(other, other[0].calc), Pace(block)))
    assert seen[-1] == expected
    assert len(seen) == -(-(expected.iterations + 1) // min(block, MAX_ITERATIONS))
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a.positions, b.positions)


def test_a_minimization_ends_after_its_last_iteration():
    atoms = molecule("H2O")
    atoms.calc = Springs(atoms.positions)
    atoms.calc.stiffness = 1e5  # beyond the shortest time step
    atoms.positions += 0.01
    *_, last = minimize(atoms)
    assert not last.converged
    assert last.iterations == MAX_ITERATIONS
