from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from ase import Atoms

from benchmarks.calculators import fidelity
from benchmarks.calculators.fidelity import Length, Plan
from benchmarks.lab.schema import read_rows


def test_a_drift_is_found_under_a_ripple(rng):
    time_ps = 0.005 * np.arange(20_000)
    ripple = 5e-5 * np.sin(2 * np.pi * time_ps / 0.0103) + 1e-5 * rng.normal(size=len(time_ps))
    for slope in (0.0, 3e-6, -3e-6):
        found, sigma = fidelity.drift(slope * time_ps + ripple, 0.005)
        assert abs(found - slope) < 4 * sigma < 1e-7


def test_simulations_are_held_against_the_truth(lab):
    simulations = [fidelity.SIMULATIONS["exact"], fidelity.TRUTH]
    plan = Plan(nve=Length(4, 2), energy_limit=1e-12)
    fidelity.run_fidelity(lab, ["nve-aspirin"], simulations, plan)
    rows = {(r.case, r.impl): r for r in read_rows(lab.results.path("fidelity"))}
    assert rows["nve-energy-aspirin", "exact-float64"].error == 0
    assert rows["nve-forces-aspirin", "exact-float64"].gate == "pass"
    rounded = rows["nve-energy-aspirin", "exact"]
    assert 1e-7 < rounded.error < 1e-3
    assert (rounded.gate, rounded.ms_p50) == ("fail", None)
    forces = rows["nve-forces-aspirin", "exact"]
    assert 1e-8 < forces.error < 1e-5
    assert forces.ms_p50 > 0


def test_a_drift_is_that_of_the_total_energy(lab, monkeypatch):
    monkeypatch.setattr(fidelity, "simulate", heating)
    plan = Plan(drift=Length(20, 1), drift_limit=1e-2)
    fidelity.run_fidelity(lab, ["drift-aspirin"], [fidelity.SIMULATIONS["exact"]], plan)
    rows = {r.case: r for r in read_rows(lab.results.path("fidelity"))}
    assert rows["drift-aspirin"].gate == "pass"
    assert rows["drift-aspirin"].error == pytest.approx(2e-3, rel=1e-3)
    assert rows["drift-aspirin-sigma"].error < 1e-5


def test_total_energies_through_openmm_are_those_through_ase():
    pytest.importorskip("openmm")
    atoms = fidelity.start(fidelity.DRIFT["aspirin"](), "cpu")
    energies = [
        list(fidelity.SIMULATIONS[name].total_energies(atoms.copy(), "cpu", Length(20, 2), []))
        for name in ("engine", "openmm")
    ]
    assert len(energies[0]) == len(energies[1]) == 10
    assert np.abs(np.subtract(*energies)).max() < 0.1 * np.ptp(energies[0])


def heating(atoms: Atoms, length: Length, times: list[float]) -> Iterator[Atoms]:
    """Heat atoms at fixed positions by 2 meV per atom and picosecond."""
    gained = 2e-3 * len(atoms) * length.every * fidelity.TIME_STEP / 1000
    for _ in range(length.frames):
        kinetic = atoms.get_kinetic_energy()
        atoms.set_momenta(atoms.get_momenta() * np.sqrt(1 + gained / kinetic))
        times.append(1e-3)
        yield atoms
