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


def test_own_simulations_are_those_of_ase():
    atoms, times = (
        fidelity.start(fidelity.DRIFT["aspirin"](), "cpu"),
        {"engine": [], "simulation": []},
    )
    energies = [
        list(fidelity.SIMULATIONS[name].total_energies(atoms.copy(), "cpu", Length(12, 3), seconds))
        for name, seconds in times.items()
    ]
    np.testing.assert_allclose(*energies, rtol=0, atol=1e-5)
    assert len(times["simulation"]) == len(energies[1]) == 4


def test_long_simulations_have_limits_of_their_own(lab):
    plan = Plan(long={"aspirin": Length(20, 2)}, bits=Length(4, 2), long_limit=1.0)
    own = [fidelity.SIMULATIONS["simulation"]]
    fidelity.run_fidelity(lab, ["long-aspirin", "bits-aspirin"], own, plan)
    rows = {r.case: r for r in read_rows(lab.results.path("fidelity"))}
    assert rows["long-aspirin"].gate == "pass"
    assert 0 < rows["long-aspirin"].error < 1.0
    assert (rows["bits-aspirin"].error, rows["bits-aspirin"].gate) == (0, "pass")


def test_runs_that_differ_are_found(lab, monkeypatch):
    own = fidelity.SIMULATIONS["simulation"]
    shifts = iter([0.0, 1e-9])

    def shifted(self, atoms, device, length, times):
        atoms = atoms.copy()
        atoms.positions += next(shifts)
        yield from observations(self, atoms, device, length, times)

    observations = type(own).observations
    monkeypatch.setattr(type(own), "observations", shifted)
    fidelity.run_fidelity(lab, ["bits-aspirin"], [own], Plan(bits=Length(2, 1)))
    (row,) = read_rows(lab.results.path("fidelity"))
    assert (row.gate, row.ms_p50) == ("fail", None)
    assert row.error == pytest.approx(1e-9, rel=0.1)


def heating(atoms: Atoms, length: Length, times: list[float]) -> Iterator[Atoms]:
    """Heat atoms at fixed positions by 2 meV per atom and picosecond."""
    gained = 2e-3 * len(atoms) * length.every * fidelity.TIME_STEP / 1000
    for _ in range(length.frames):
        kinetic = atoms.get_kinetic_energy()
        atoms.set_momenta(atoms.get_momenta() * np.sqrt(1 + gained / kinetic))
        times.append(1e-3)
        yield atoms
