"""Exchange of temperatures: populations of a model with two states, and bookkeeping."""

from __future__ import annotations

import ase.io
import numpy as np
import pytest
from ase import Atoms, units
from ase.build import molecule

from mlff_triton.dynamics import (
    Settings,
    Simulation,
    Stage,
    frames_by_temperature,
    load_restart,
)
from mlff_triton.dynamics.exchange import exchange
from mlff_triton.engine.motion import Observation, State
from mlff_triton.errors import InputError
from tests.support.springs import Springs, stop_at

GAP = 0.05  # eV
TEMPERATURES = (200.0, 300.0, 450.0)


def observation(step: int, energy: np.ndarray, velocities: np.ndarray) -> Observation:
    n_systems = len(energy)
    cell, virial = np.zeros((2, n_systems, 3, 3))
    zeros = np.zeros(n_systems)
    state = State(step, np.zeros_like(velocities), velocities, cell, zeros, zeros.copy())
    return Observation(state, np.zeros_like(velocities), energy, virial, np.zeros((n_systems, 2)))


def test_populations_are_those_of_boltzmann():
    """Only the hottest replica changes its state by itself."""
    rng = np.random.default_rng(0)
    systems = [Atoms("H")] * 3
    states, temperatures = np.zeros(3), TEMPERATURES
    excited = dict.fromkeys(TEMPERATURES, 0)
    sweeps = 10_000
    for step in range(1, sweeps + 1):
        hottest = temperatures.index(max(temperatures))
        change = GAP * (1 - 2 * states[hottest])
        if rng.random() < np.exp(-change / (units.kB * max(temperatures))):
            states[hottest] = 1 - states[hottest]
        seen = observation(step, GAP * states, np.zeros((3, 3)))
        _, temperatures = exchange(systems, seen, temperatures, 5, 1)
        for state, temperature in zip(states, temperatures, strict=True):
            excited[temperature] += state
    for temperature, count in excited.items():
        weight = np.exp(-GAP / (units.kB * temperature))
        assert count / sweeps == pytest.approx(weight / (1 + weight), rel=0.1)


def test_velocities_follow_the_temperature():
    systems = [Atoms("H"), Atoms("O")]
    velocities = np.array([[1.0, 0, 0], [0, 0.5, 0]])
    cold_is_higher = observation(2, np.array([5.0, 0.0]), velocities)
    state, temperatures = exchange(systems, cold_is_higher, (300.0, 400.0), 1, 1)
    assert temperatures == (400.0, 300.0)
    np.testing.assert_allclose(state.velocities[0], [(4 / 3) ** 0.5, 0, 0])
    np.testing.assert_allclose(state.velocities[1], [0, 0.5 * 0.75**0.5, 0])
    masses = np.array([atoms.get_masses()[0] for atoms in systems])
    before, after = (0.5 * masses * (v**2).sum(1) for v in (velocities, state.velocities))
    np.testing.assert_allclose(state.work, after - before)
    assert velocities[0, 0] == 1.0


def test_pairs_take_turns():
    """With three replicas, the first two may exchange at even multiples, the last two at odd."""
    systems = [Atoms("H")] * 3
    energy = np.array([2.0, 1.0, 0.0])
    for step, expected in ((20, (300.0, 200.0, 450.0)), (30, (200.0, 450.0, 300.0))):
        seen = observation(step, energy, np.ones((3, 3)))
        assert exchange(systems, seen, TEMPERATURES, 1, 10)[1] == expected


def test_exchanges_are_counted_and_frames_sorted(tmp_path):
    """Counts survive a restart; each frame is found at the temperature that it says."""
    settings = Settings(
        stages=(Stage("nvt", 60),),
        temperature=(300.0, 301.0, 302.0),
        every=4,
        log_every=2,
        exchange_every=2,
    )
    water = molecule("H2O")
    springs = Springs(water.positions)
    for name, stop in (("whole", None), ("broken", 31)):
        simulation = Simulation.start([water] * 3, springs, settings, tmp_path / name)
        if stop:
            simulation.run(should_stop=stop_at(simulation, stop), block=1)
            snapshot = load_restart(tmp_path / name / "restart.npz")
            simulation = Simulation.resume(snapshot, springs, tmp_path / name)
        assert simulation.run()
        assert [attempts for attempts, _ in simulation.exchanges] == [15, 15]
        assert all(0 < exchanges <= 15 for _, exchanges in simulation.exchanges)
    assert simulation.exchanges == load_restart(tmp_path / "whole" / "restart.npz").exchanges
    found = frames_by_temperature(tmp_path / "whole")
    assert list(found) == [300.0, 301.0, 302.0]
    for temperature, visits in found.items():
        assert [visit.step for visit in visits] == list(range(0, 61, 4))
        assert len({visit.path for visit in visits}) > 1
        for visit in visits:
            frame = ase.io.read(visit.path, visit.number)
            assert frame.info["step"] == visit.step
            assert frame.info["target_K"] == temperature
    snapshot = load_restart(tmp_path / "whole" / "restart.npz").continued(Stage("nvt", 4))
    assert Simulation.resume(snapshot, springs, tmp_path / "whole", trajectory="dcd").run()
    with pytest.raises(InputError, match=r"trajectory-000.xyz holds an earlier part"):
        frames_by_temperature(tmp_path / "whole")
