"""Simulations in loops for CPUs: as with any calculator, and the same bits whatever the threads."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from ase import Atoms, units
from ase.constraints import FixAtoms

from mlff_triton import TensorNetCalculator
from mlff_triton._common.torch_settings import using_threads
from mlff_triton.calculators._fixed_atoms import moving_masses
from mlff_triton.dynamics import Settings, Simulation, Stage, load_restart
from mlff_triton.dynamics.conditions import minimizing
from mlff_triton.dynamics.host_dynamics import HostDynamics
from mlff_triton.dynamics.outputs import LOG, RESTART
from mlff_triton.dynamics.systems import make_dynamics
from mlff_triton.engine.engine import Engine
from mlff_triton.engine.motion import Conditions, Dynamics, Observation, State
from mlff_triton.errors import InputError, OverlappingAtomsError
from mlff_triton.kernels.types.motion import Barostat, Integration, Rescaling
from mlff_triton.testing import random_cluster, random_crystal, water_box
from tests.support.device_steps import at_start, batch_of
from tests.support.tensornets import model_of

pytest.importorskip("numba")
from mlff_triton.engine import cpu_dynamics
from mlff_triton.engine.cpu_dynamics import CpuDynamics
from mlff_triton.kernels.common.cpu import compilation

TIMESTEP = 0.5 * units.fs
LANGEVIN = Integration(TIMESTEP, seed=3, friction=0.05)
BAROSTAT = Barostat(pressure=0.0, compressibility=5.0, time=50 * units.fs, every=2, isotropic=False)
STAGES = {
    "verlet": (Integration(TIMESTEP), None, None),
    "langevin": (LANGEVIN, None, None),
    "rescaling": (Integration(TIMESTEP, seed=3), Rescaling(10 * units.fs), None),
    "barostat": (LANGEVIN, None, BAROSTAT),
}
MODEL = model_of(num_layers=1, hidden_channels=16, num_rbf=6)


def conditions(stage: str, n_systems: int = 1) -> Conditions:
    if stage == "descent":
        return minimizing(n_systems, 1e-6)
    integration, rescaling, barostat = STAGES[stage]
    temperature = np.tile([300 * units.kB, 1e-5], (n_systems, 1))
    stream = np.arange(n_systems, dtype=np.int32)
    lost = np.full(n_systems, 3, dtype=np.int32)
    return Conditions(integration, temperature, stream, lost, rescaling, barostat)


def state_of(*systems: Atoms, speed: float = 0.05) -> State:
    positions = np.concatenate([atoms.positions for atoms in systems])
    velocities = np.random.default_rng(1).normal(0, speed, positions.shape)
    return at_start(positions, velocities, np.stack([atoms.cell.array for atoms in systems]))


def dynamics_of(*systems: Atoms, limits=None, **options) -> Dynamics:
    engine = Engine(MODEL, "cpu", options.pop("dtype", "float64"), "cpu", **options)
    dynamics = engine.dynamics(batch_of(*systems), moving_masses(systems), limits)
    assert isinstance(dynamics, CpuDynamics)
    return dynamics


def run(dynamics: Dynamics, state: State, stage: Conditions, stops, continued=False):
    """Run blocks that end at these steps, and observe all of them."""
    seen = [dynamics.begin(state, stage, is_continued=continued)]
    for stop in stops:
        dynamics.queue(stop, is_observed=True)
        seen.append(dynamics.collect())
    return seen


def assert_equal(found: Observation, expected: Observation) -> None:
    assert found.state.step == expected.state.step
    for name in ("positions", "velocities", "cell", "heat", "work"):
        one, other = getattr(found.state, name), getattr(expected.state, name)
        np.testing.assert_array_equal(one, other, name)
    for name in ("forces", "energy", "virial"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), name)


@pytest.mark.parametrize("stage", [*STAGES, "descent"])
def test_atoms_move_as_with_any_calculator(stage):
    """Several systems, one with a fixed atom, in float64."""
    systems = [random_crystal(9, "triclinic"), random_crystal(4, "cubic")]
    if stage != "barostat":
        systems[0].set_constraint(FixAtoms([1]))
        systems.append(random_cluster(5))
    state = state_of(*systems)
    fixed = moving_masses(systems) == np.inf
    state.velocities[fixed] = 0
    if stage == "descent":
        state.velocities[:] = 0
    calculator = TensorNetCalculator(MODEL, device="cpu", dtype="float64", backend="cpu")
    given = conditions(stage, len(systems))
    given.lost[0] = 0  # as fixed atoms keep the momentum of the others from being conserved
    ours = run(dynamics_of(*systems), state, given, [3, 8])
    theirs = run(HostDynamics(systems, calculator), state, given, [3, 8])
    for found, expected in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(found.state.positions[fixed], state.positions[fixed])
        for name in ("positions", "velocities", "cell", "heat", "work"):
            one, other = getattr(found.state, name), getattr(expected.state, name)
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9, err_msg=name)
        for name in ("forces", "energy", "progress"):
            one, other = getattr(found, name), getattr(expected, name)
            np.testing.assert_allclose(one, other, rtol=1e-7, atol=1e-7, err_msg=name)
        np.testing.assert_allclose(found.virial[:2], expected.virial[:2], rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("stage", ["verlet", "langevin", "rescaling"])
def test_blocks_skins_and_threads_change_no_bit(stage):
    atoms, given = water_box(70), conditions(stage)
    state = state_of(atoms)
    with using_threads(1):
        expected = run(dynamics_of(atoms, dtype="float32"), state, given, [8])[-1]
    assert not np.array_equal(expected.state.positions, state.positions)
    for stops, skin, count in (([2, 4, 6, 8], 0.5, 2), ([2, 8], 0.1, 3), ([8], 1.0, 2)):
        with using_threads(count):
            found = run(dynamics_of(atoms, dtype="float32", skin=skin), state, given, stops)
        assert_equal(found[-1], expected)


@pytest.mark.parametrize("stage", STAGES)
def test_simulations_continue_from_their_states_with_other_threads(stage):
    atoms, given = random_crystal(150, "triclinic"), conditions(stage)
    stops = [2, 4, 6]
    with using_threads(1):
        first = run(dynamics_of(atoms), state_of(atoms), given, stops)
    with using_threads(2):
        again = run(dynamics_of(atoms, skin=0.3), first[1].state, given, stops[1:], continued=True)
    for found, expected in zip(again, first[1:], strict=True):
        assert_equal(found, expected)


def test_observations_are_not_overwritten():
    atoms = random_crystal(5, "cubic")
    dynamics, given = dynamics_of(atoms), conditions("verlet")
    first = dynamics.begin(state_of(atoms), given, is_continued=False)
    kept = replace(first, forces=first.forces.copy(), energy=first.energy.copy())
    dynamics.queue(3, is_observed=True)
    dynamics.collect()
    assert_equal(first, kept)


def test_systems_at_rest_are_not_computed_again(monkeypatch):
    """A minimization ends as with all systems at once, and evaluates fewer of them."""
    systems = [random_cluster(6), random_cluster(3), random_cluster(9)]
    state = state_of(*systems, speed=0.0)
    given = minimizing(3, 0.02)
    sizes = []
    dynamics = dynamics_of(*systems)
    evaluate = dynamics._state.evaluate

    def noted(batch):
        sizes.append(len(batch.boxes))
        return evaluate(batch)

    monkeypatch.setattr(dynamics._state, "evaluate", noted)
    last = run(dynamics, state, given, [150])[-1]
    assert sizes[0] == 3
    assert 0 < min(sizes) < 3
    for k, atoms in enumerate(systems):
        part = slice(*np.cumsum([0, 6, 3, 9])[k : k + 2])
        alone = run(dynamics_of(atoms), state_of(atoms, speed=0.0), minimizing(1, 0.02), [150])[-1]
        assert last.progress[k, 0] == alone.progress[0, 0]
        np.testing.assert_allclose(last.state.positions[part], alone.state.positions, atol=1e-9)
        np.testing.assert_allclose(last.forces[part], alone.forces, atol=1e-8)
        np.testing.assert_allclose(last.energy[k], alone.energy[0])


def test_atoms_that_come_too_close_end_the_simulation():
    atoms = Atoms("HCO", [[-9, 0, 0], [0, 0, 0], [0, 0, 2.0]], masses=[1e9] * 3)
    alone = Atoms("H", [[0.0, 0, 0]], masses=[1e9])
    velocities = np.array([[0, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, -0.1 / TIMESTEP]])
    positions = np.concatenate([alone.positions, atoms.positions])
    state = at_start(positions, velocities, np.zeros((2, 3, 3)))
    dynamics = dynamics_of(alone, atoms, limits=np.full(4, 0.21))
    with pytest.raises(OverlappingAtomsError, match=r"atoms 1 and 2 are only 0\.4 Å apart"):
        run(dynamics, state, conditions("verlet", 2), [19])
    assert dynamics.step == 15
    assert dynamics.suspect().atom == 2


def test_atoms_that_are_lost_end_the_simulation():
    atoms = random_crystal(6, "triclinic")
    state = state_of(atoms)
    state.velocities[1, 2] = np.nan
    dynamics = dynamics_of(atoms)
    with pytest.raises(InputError, match="atom 1 is NaN or infinite"):
        run(dynamics, state, conditions("verlet"), [3])
    assert dynamics.step == 0
    assert dynamics.suspect().atom == 1


def test_a_simulation_stopped_anywhere_continues_to_the_same_bytes_with_other_threads(tmp_path):
    atoms = water_box(50)
    stages = (Stage("nvt", 12), Stage("npt", 12))

    def start(name: str, count: int) -> Simulation:
        settings = Settings(stages=stages, every=3, log_every=1, threads=count)
        calculator = TensorNetCalculator(MODEL, device="cpu", backend="cpu")
        return Simulation.start(atoms, calculator, settings, tmp_path / name)

    whole, stopped = start("whole", 1), start("stopped", 2)
    assert isinstance(make_dynamics(whole.systems, whole._calculator), CpuDynamics)
    assert whole.run()
    assert not stopped.run(should_stop=lambda: stopped.step >= 7, block=1)
    snapshot = load_restart(tmp_path / "stopped" / RESTART)
    snapshot = replace(snapshot, settings=replace(snapshot.settings, threads=3))
    calculator = TensorNetCalculator(MODEL, device="cpu", backend="cpu")
    assert Simulation.resume(snapshot, calculator, tmp_path / "stopped").run()
    for name in (LOG, "trajectory.xyz"):
        assert (tmp_path / "stopped" / name).read_bytes() == (
            tmp_path / "whole" / name
        ).read_bytes()


@pytest.mark.parametrize("stage", ["langevin", "rescaling", "descent"])
def test_loops_of_the_motion_are_compiled_with_those_of_the_network(stage, monkeypatch):
    """Compilers would otherwise run one after another, for up to a second each."""
    ahead, late = set(), set()

    def note(function, *arguments, **options):
        (late if compilation._collected.get() is None else ahead).add(function.__name__)
        run_loop(function, *arguments, **options)

    run_loop = compilation.run
    for function in cpu_dynamics.LOOPS[:2] + cpu_dynamics.LOOPS[3:]:
        monkeypatch.setitem(function.__globals__, "run", note)
    atoms = random_crystal(4, "cubic")
    state = state_of(atoms, speed=0.0)
    run(dynamics_of(atoms), state, conditions(stage), [2])
    assert late
    assert late <= ahead


@pytest.mark.parametrize(
    "setting", [torch.inference_mode, partial(torch.autocast, "cpu", dtype=torch.bfloat16)]
)
def test_settings_of_the_caller_change_nothing(setting):
    atoms, given = random_crystal(6, "triclinic"), conditions("langevin")
    expected = run(dynamics_of(atoms, dtype="float32"), state_of(atoms), given, [3])[-1]
    with setting():
        found = run(dynamics_of(atoms, dtype="float32"), state_of(atoms), given, [3])[-1]
    assert_equal(found, expected)
