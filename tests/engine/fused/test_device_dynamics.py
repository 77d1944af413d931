"""Simulations on a GPU: bits that depend on nothing but the state, and laws of mechanics.

Without a GPU, Triton's interpreter runs the kernels of neighbors and integrators, and plain PyTorch
computes the network.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ase import Atoms, units
from ase.constraints import FixAtoms
from triton.runtime.interpreter import GridExecutor

from mlff_triton import TensorNetCalculator
from mlff_triton.calculators._fixed_atoms import moving_masses
from mlff_triton.dynamics.conditions import minimizing
from mlff_triton.dynamics.host_dynamics import HostDynamics
from mlff_triton.engine import device_dynamics, device_state, step_graph
from mlff_triton.engine.device_neighbors import Capacity
from mlff_triton.engine.motion import (
    Conditions,
    Dynamics,
    Observation,
    State,
    UncertainAtomError,
)
from mlff_triton.errors import InputError, OverlappingAtomsError
from mlff_triton.kernels.types.motion import Barostat, Integration, Rescaling
from mlff_triton.testing import random_cluster
from tests.support.device_steps import at_start, batch_of, crystal, model

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0"),
    pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning"),
]

TIMESTEP = 0.5 * units.fs
KT = 300 * units.kB
VERLET = Integration(TIMESTEP)
LANGEVIN = Integration(TIMESTEP, seed=3, friction=0.05)
BAROSTAT = Barostat(pressure=0.0, compressibility=5.0, time=50 * units.fs, every=2, isotropic=False)
STAGES = {
    "verlet": (VERLET, None, None),
    "langevin": (LANGEVIN, None, None),
    "rescaling": (Integration(TIMESTEP, seed=3), Rescaling(10 * units.fs), None),
    "barostat": (LANGEVIN, None, BAROSTAT),
}


def conditions(stage: str, n_systems: int = 1, first_stream: int = 0) -> Conditions:
    integration, rescaling, barostat = STAGES[stage]
    temperature = np.tile([KT, 1e-5], (n_systems, 1))
    stream = np.arange(first_stream, first_stream + n_systems, dtype=np.int32)
    lost = np.full(n_systems, 3, dtype=np.int32)
    return Conditions(integration, temperature, stream, lost, rescaling, barostat)


def state_of(*systems: Atoms, speed: float = 0.05) -> State:
    rng = np.random.default_rng(1)
    positions = np.concatenate([atoms.positions for atoms in systems])
    velocities = rng.normal(0, speed, positions.shape)
    return at_start(positions, velocities, np.stack([atoms.cell.array for atoms in systems]))


def dynamics_of(make, *systems: Atoms, **options) -> Dynamics:
    masses = np.concatenate([atoms.get_masses() for atoms in systems])
    return make(**options).dynamics(batch_of(*systems), masses)


def run(
    dynamics: Dynamics, state: State, stage: Conditions, stops: list[int], continued: bool = False
) -> list[Observation]:
    """Run blocks that end at these steps, and observe all of them."""
    seen = [dynamics.begin(state, stage, is_continued=continued)]
    for k, stop in enumerate(stops):
        dynamics.queue(stop, is_observed=True)
        if k:
            seen.append(dynamics.collect())
    seen.append(dynamics.collect())
    return seen


def assert_equal(found: Observation, expected: Observation) -> None:
    assert found.state.step == expected.state.step
    for name in ("positions", "velocities", "cell", "heat", "work"):
        one, other = getattr(found.state, name), getattr(expected.state, name)
        np.testing.assert_array_equal(one, other, name)
    for name in ("forces", "energy", "virial", "uncertainty"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), name)


@pytest.mark.parametrize("stage", ["verlet", "langevin", "rescaling"])
def test_blocks_and_skins_change_no_bit(stage, new_steps):
    """Only the barostat acts at the ends of blocks: see the next test."""
    atoms, given = crystal(3, "triclinic"), conditions(stage)
    state = state_of(atoms)
    expected = run(dynamics_of(new_steps, atoms), state, given, [8])[-1]
    assert expected.state.step == 8
    assert not np.array_equal(expected.state.positions, state.positions)
    for stops, skin in (([2, 4, 6, 8], 0.1), ([6, 8], 1.0)):
        found = run(dynamics_of(new_steps, atoms, skin=skin), state, given, stops)[-1]
        assert_equal(found, expected)


@pytest.mark.parametrize("stage", ["verlet", "rescaling", "barostat"])
def test_no_atom_moves_on_from_an_uncertain_step(stage, new_steps):
    """The step is the first one above the limit, however steps are divided into blocks."""
    atoms, given = crystal(3, "triclinic"), conditions(stage)
    state = state_of(atoms, speed=0.3)
    seen = run(dynamics_of(new_steps, atoms), state, given, list(range(1, 9)))
    largest = np.array([each.uncertainty.max() for each in seen])
    step = int(np.argmax(largest > np.maximum(largest[0], largest[1]) * (1 + 1e-9)))
    assert step > 1, "the run must become less certain for this test"
    limit = float(largest[:step].max() + largest[step]) / 2
    for stops in ([1, 2, 3, 4, 5, 6, 7, 8], [4, 8], [8]):
        dynamics = dynamics_of(new_steps, atoms)
        with pytest.raises(UncertainAtomError) as stopped:
            run(dynamics, state, given._replace(most_uncertain=limit), stops)
        found = stopped.value
        assert found.step == step == dynamics.step + 1
        np.testing.assert_array_equal(found.uncertainty, seen[step].uncertainty)
        np.testing.assert_array_equal(found.positions, seen[step].state.positions)
        np.testing.assert_array_equal(found.cell, seen[step].state.cell)
        free = run(dynamics_of(new_steps, atoms), state, given._replace(most_uncertain=1e9), stops)
        assert_equal(free[-1], seen[-1])


@pytest.mark.parametrize("stage", STAGES)
def test_simulations_continue_from_their_states(stage, new_steps):
    atoms, given = crystal(3, "triclinic"), conditions(stage)
    stops = [2, 4, 6, 8]
    first = run(dynamics_of(new_steps, atoms), state_of(atoms), given, stops)
    for k in (1, 3):
        dynamics = dynamics_of(new_steps, atoms, skin=0.3)
        again = run(dynamics, first[k].state, given, stops[k:], continued=True)
        for found, expected in zip(again, first[k:], strict=True):
            assert_equal(found, expected)


@pytest.mark.parametrize("stage", ["langevin", "rescaling"])
def test_replicas_move_as_if_alone(stage, fused):
    """The network runs in kernels everywhere: bits of PyTorch's products depend on their size."""
    systems = [crystal(2, "triclinic"), crystal(2, "cubic")]
    state, options = state_of(*systems), {"dtype": torch.float32}
    together = run(dynamics_of(fused, *systems, **options), state, conditions(stage, 2), [1])[-1]
    parts = (state.positions[2:], state.velocities[2:], state.cell[1:], state.heat[2:])
    second = State(0, *parts, state.work[1:])
    dynamics = dynamics_of(fused, systems[1], **options)
    alone = run(dynamics, second, conditions(stage, 1, first_stream=1), [1])[-1]
    np.testing.assert_array_equal(together.state.positions[2:], alone.state.positions)
    np.testing.assert_array_equal(together.state.velocities[2:], alone.state.velocities)
    np.testing.assert_array_equal(together.forces[2:], alone.forces)
    np.testing.assert_array_equal(together.energy[1:], alone.energy)


@pytest.mark.parametrize("stage", ["verlet", "langevin", "rescaling", "descent"])
def test_fixed_atoms_stay_and_the_others_move_as_on_the_host(stage, new_steps):
    systems = [crystal(3, "triclinic"), crystal(4, "triclinic")]
    systems[0].set_constraint(FixAtoms([1]))
    fixed = np.arange(7) == 1
    state = state_of(*systems)
    state.velocities[fixed] = 0
    if stage == "descent":
        state.velocities[:] = 0
        given = minimizing(2, 1e-6)
    else:
        given = conditions(stage, 2)._replace(lost=np.array([0, 3], dtype=np.int32))
    batch, masses = batch_of(*systems), moving_masses(systems)
    calculator = TensorNetCalculator(model(), device="cpu", dtype="float64")
    on_device = run(new_steps().dynamics(batch, masses), state, given, [3, 6])
    on_host = run(HostDynamics(systems, calculator), state, given, [6])
    for seen in (*on_device, *on_host):
        np.testing.assert_array_equal(seen.state.positions[fixed], state.positions[fixed])
        assert not seen.state.velocities[fixed].any()
        assert seen.state.heat[fixed] == 0
    found, expected = on_device[-1], on_host[-1]
    assert (found.state.positions != state.positions).any(1).tolist() == (~fixed).tolist()
    for name in ("positions", "velocities", "heat", "work"):
        one, other = getattr(found.state, name), getattr(expected.state, name)
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-7, err_msg=name)
    np.testing.assert_allclose(found.progress, expected.progress, atol=1e-6)


def test_neighbors_that_overflow_in_a_block_lose_nothing(new_steps):
    """A gas collapses: rows become too short, and the list stale, in the middle of a block."""
    gas = random_cluster(14)
    gas.positions *= 2.0
    state = state_of(gas)
    state = State(0, state.positions, -0.1 * gas.positions, state.cell, state.heat, state.work)
    stage, capacity = conditions("verlet"), Capacity(first=4, multiple=4)
    roomy = run(dynamics_of(new_steps, gas), state, stage, [12])
    tight = dynamics_of(new_steps, gas, capacity=capacity, skin=0.1)
    found = run(tight, state, stage, [4, 12])
    assert_equal(found[-1], roomy[-1])


def test_the_interval_between_lists_follows_the_motion(new_steps):
    atoms = crystal(3, "triclinic")
    dynamics = dynamics_of(new_steps, atoms)
    run(dynamics, state_of(atoms, speed=1e-4), conditions("verlet"), [4, 8, 12, 24])
    assert dynamics._interval > device_dynamics.FIRST_INTERVAL


def test_energy_is_conserved(new_steps):
    atoms = random_cluster(4)
    state = state_of(atoms, speed=0.02)
    dynamics = dynamics_of(new_steps, atoms)
    seen = run(dynamics, state, conditions("verlet"), [10, 20])
    masses = atoms.get_masses()[:, None]
    total = [o.energy[0] + 0.5 * (masses * o.state.velocities**2).sum() for o in seen]
    moved = abs(seen[-1].energy[0] - seen[0].energy[0])
    assert np.ptp(total) < 0.02 * moved


def test_atoms_that_meet_end_the_simulation(new_steps):
    """Without forces between them, they pass through each other."""
    atoms = Atoms("HCO", [[-9, 0, 0], [0, 0, 0], [0, 0, 2.0]])
    velocities = np.array([[0, 0, 0], [0, 0, 1.0 / TIMESTEP], [0, 0, -1.0 / TIMESTEP]])
    state = at_start(atoms.positions, velocities / 4, np.zeros((1, 3, 3)))
    heavy = Atoms(atoms, masses=[1e9] * 3)
    dynamics = dynamics_of(new_steps, heavy)
    with pytest.raises(OverlappingAtomsError, match=r"atoms \[1, 2\] have come to the same point"):
        run(dynamics, state, conditions("verlet"), [10])
    assert dynamics.step == 3


def test_atoms_that_are_lost_end_the_simulation(new_steps):
    atoms = crystal(3, "triclinic")
    state = state_of(atoms)
    state.velocities[1, 2] = np.nan
    dynamics = dynamics_of(new_steps, atoms)
    with pytest.raises(InputError, match="atom 1 is NaN or infinite"):
        run(dynamics, state, conditions("verlet"), [3])
    assert dynamics.step == 0


def test_a_list_without_skin_is_refused(new_steps):
    atoms = crystal(3, "triclinic")
    with pytest.raises(InputError, match="use a larger skin"):
        run(dynamics_of(new_steps, atoms, skin=0.0), state_of(atoms), conditions("verlet"), [3])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning")
def test_queued_blocks_do_not_wait(new_steps):
    atoms = crystal(16, "triclinic")
    dynamics = dynamics_of(new_steps, atoms)
    run(dynamics, state_of(atoms), conditions("langevin"), [10])
    try:
        torch.cuda.set_sync_debug_mode("error")
        dynamics.queue(60, is_observed=True)
        dynamics.queue(80, is_observed=False)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert dynamics.collect().state.step == 60
    assert dynamics.collect() is None


def test_atoms_that_come_too_close_are_noted_between_looks(new_steps):
    """The GPU notes them whenever it finds neighbors, and the host reads that at the next block."""
    alone = Atoms("H", [[0.0, 0, 0]])
    atoms = Atoms("HCO", [[-9, 0, 0], [0, 0, 0], [0, 0, 2.0]])
    velocities = np.array([[0, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, -0.1 / TIMESTEP]])
    systems = [alone, Atoms(atoms, masses=[1e9] * 3)]
    positions = np.concatenate([one.positions for one in systems])
    state = at_start(positions, velocities, np.zeros((2, 3, 3)))
    masses, limits = np.full(4, 1e9), np.full(4, 0.21)
    dynamics = new_steps().dynamics(batch_of(*systems), masses, limits)
    with pytest.raises(OverlappingAtomsError, match=r"atoms 1 and 2 are only 0\.\d+ Å apart"):
        run(dynamics, state, conditions("verlet", 2), [19])
    assert 13 <= dynamics.step < 19  # 0.43 Å apart after 16 steps, found when atoms are next sorted
    assert dynamics.suspect().atom == 2


def test_kernels_are_compiled_together_before_they_are_launched(fused, monkeypatch):
    """Compilers would otherwise run one after another, for up to a second each."""
    if torch.cuda.is_available():
        pytest.skip("only the interpreter shows the launches of kernels")
    ahead: set[str] = set()
    late: set[str] = set()
    launched, run_kernel = late, GridExecutor.__call__

    def note(kernel, *arguments, **options):
        variant = sorted((k, v) for k, v in options.items() if k.isupper())
        launched.add(f"{kernel.fn.__name__} {variant}")
        if launched is late:
            run_kernel(kernel, *arguments, **options)

    def compile_ahead(launch):
        nonlocal launched
        launched = ahead
        launch()
        launched = late

    monkeypatch.setattr(GridExecutor, "__call__", note)
    for module in (device_dynamics, device_state, step_graph):
        monkeypatch.setattr(module, "compile_ahead", compile_ahead)
    atoms = crystal(2, "triclinic")
    steps = fused(dtype=torch.float32)
    limits = np.full(len(atoms), 0.1)
    dynamics = steps.dynamics(batch_of(atoms), atoms.get_masses(), limits)
    dynamics.begin(state_of(atoms), conditions("barostat"), is_continued=False)
    assert {name.split()[0] for name in late} >= {"_edges_kernel"}
    assert late <= ahead
