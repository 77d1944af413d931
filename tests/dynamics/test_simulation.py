"""Simulations: files, exact restarts, failures."""

from __future__ import annotations

import ase.io
import numpy as np
import pytest
import torch
from ase import units
from ase.build import molecule
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from mlff_triton import TensorNet, TensorNetCalculator, TensorNetConfig
from mlff_triton.dynamics import (
    Settings,
    Simulation,
    Stage,
    load_restart,
)
from mlff_triton.dynamics.outputs import LOG, RESTART
from mlff_triton.errors import InputError, OutputError, SimulationError
from tests.support.springs import FailsAfter, Springs, stop_at

TRAJECTORY = "trajectory.xyz"


@pytest.fixture(scope="module")
def tiny_model():
    torch.manual_seed(0)
    return TensorNet(
        TensorNetConfig(elements=(1, 6, 7, 8), hidden_channels=16, num_layers=1, num_rbf=8)
    )


def water_box():
    first, second = molecule("H2O"), molecule("H2O")
    second.positions += 2.5
    box = first + second
    box.set_cell([6.0, 6.5, 7.0])
    box.set_pbc(True)
    return box


def contents(directory):
    return (directory / TRAJECTORY).read_bytes(), (directory / LOG).read_bytes()


def assert_same_state(one, other):
    """Assert that two restart files are bitwise equal."""
    with np.load(one) as a, np.load(other) as b:
        assert set(a) == set(b)
        for name in a:
            np.testing.assert_array_equal(a[name], b[name], err_msg=name)


PLANS = {
    "nve": Settings(stages=(Stage("nve", 40),), every=8, minimize=True),
    "nvt": Settings(stages=(Stage("nvt", 40),), every=8),
    "npt": Settings(stages=(Stage("npt", 40),), every=8, pressure=100.0),
    "sheared": Settings(stages=(Stage("npt", 40),), every=8, barostat="anisotropic"),
    "all": Settings(
        stages=(Stage("nvt", 15), Stage("npt", 15), Stage("nve", 10)), every=6, minimize=True
    ),
}


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("stops", [(0,), (16,), (13, 22), (15, 30)], ids=str)
def test_a_continued_run_equals_an_unbroken_one(tmp_path, tiny_model, plan, stops):
    box = water_box()
    box.info["charge"] = 1
    settings = PLANS[plan]
    unbroken = Simulation.start(
        box, TensorNetCalculator(tiny_model, device="cpu"), settings, tmp_path / "unbroken"
    )
    assert unbroken.run()

    folder = tmp_path / "broken"
    broken = Simulation.start(box, TensorNetCalculator(tiny_model, device="cpu"), settings, folder)
    for stop in stops:
        assert not broken.run(should_stop=stop_at(broken, stop), block=1)
        if stop:
            assert ase.io.read(folder / TRAJECTORY).info["step"] == broken.step == stop
        calculator = TensorNetCalculator(tiny_model, device="cpu")
        broken = Simulation.resume(load_restart(folder / RESTART), calculator, folder)
    assert broken.run()

    assert contents(folder) == contents(tmp_path / "unbroken")
    assert_same_state(folder / RESTART, tmp_path / "unbroken" / RESTART)
    frames = ase.io.read(folder / TRAJECTORY, index=":")
    assert [frame.info["step"] for frame in frames] == [
        step for step in range(41) if settings.is_due(step)
    ]


@given(stop=st.integers(1, 29), every=st.integers(1, 40), seed=st.integers(0, 99))
@hypothesis_settings(max_examples=15, deadline=None)
def test_any_interruption_can_be_continued(tmp_path_factory, stop, every, seed):
    folder = tmp_path_factory.mktemp("run")
    atoms = molecule("CH3CH2OH")
    settings = Settings(stages=(Stage("nvt", 20), Stage("nve", 10)), every=every, seed=seed)
    unbroken = Simulation.start(atoms, Springs(atoms.positions), settings, folder / "a")
    unbroken.run()
    broken = Simulation.start(atoms, Springs(atoms.positions), settings, folder / "b")
    broken.run(should_stop=stop_at(broken, stop), block=1)
    snapshot = load_restart(folder / "b" / RESTART)
    assert Simulation.resume(snapshot, Springs(atoms.positions), folder / "b").run()
    assert contents(folder / "a") == contents(folder / "b")


def test_what_a_killed_run_wrote_after_its_restart_is_cut_off(tmp_path):
    atoms = molecule("CH3CH2OH")
    settings = Settings(stages=(Stage("nve", 20),), every=5)
    simulation = Simulation.start(atoms, Springs(atoms.positions), settings, tmp_path / "a")
    simulation.run(should_stop=stop_at(simulation, 10), block=1)
    for name in (TRAJECTORY, LOG):
        with (tmp_path / "a" / name).open("a") as file:
            file.write("9\nhalf a fra")
    snapshot = load_restart(tmp_path / "a" / RESTART)
    Simulation.resume(snapshot, Springs(atoms.positions), tmp_path / "a").run()
    Simulation.start(atoms, Springs(atoms.positions), settings, tmp_path / "b").run()
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_a_complete_run_stays_as_it_is(tmp_path):
    atoms = molecule("CH3CH2OH")
    settings = Settings(stages=(Stage("nve", 7),), every=5)
    Simulation.start(atoms, Springs(atoms.positions), settings, tmp_path).run()
    before = contents(tmp_path)
    simulation = Simulation.resume(
        load_restart(tmp_path / RESTART), Springs(atoms.positions), tmp_path
    )
    assert simulation.run()
    assert contents(tmp_path) == before


def test_bad_restarts_are_refused(tmp_path):
    atoms = molecule("CH3CH2OH")
    settings = Settings(stages=(Stage("nve", 7),), every=5)
    Simulation.start(atoms, Springs(atoms.positions), settings, tmp_path).run()
    whole = (tmp_path / RESTART).read_bytes()
    damaged = tmp_path / "damaged.npz"
    for blob in (b"", b"text", whole[:-100], whole[:500] + b"\0" * 100 + whole[600:]):
        damaged.write_bytes(blob)
        with pytest.raises(InputError, match="not a valid restart file"):
            load_restart(damaged)
    np.save(tmp_path / "array.npy", np.ones(3))
    for name, message in (("array.npy", "not a valid"), ("absent.npz", "there is no restart file")):
        with pytest.raises(InputError, match=message):
            load_restart(tmp_path / name)
    (tmp_path / TRAJECTORY).write_text("")
    with pytest.raises(OutputError, match="restore the original"):
        Simulation.resume(load_restart(tmp_path / RESTART), Springs(atoms.positions), tmp_path)


def test_the_trajectory_holds_energy_momenta_and_forces(tmp_path, tiny_model):
    settings = Settings(stages=(Stage("nvt", 12),), every=5)
    simulation = Simulation.start(
        water_box(), TensorNetCalculator(tiny_model, device="cpu"), settings, tmp_path
    )
    simulation.run()
    frames = ase.io.read(tmp_path / TRAJECTORY, index=":")
    assert [frame.info["step"] for frame in frames] == [0, 5, 10, 12]
    last = frames[-1]
    np.testing.assert_allclose(last.positions, simulation.atoms.positions, atol=1e-8)
    np.testing.assert_allclose(last.get_momenta(), simulation.atoms.get_momenta(), atol=1e-8)
    np.testing.assert_allclose(last.get_forces(), simulation.atoms.get_forces(), atol=1e-8)
    assert last.get_potential_energy() == pytest.approx(simulation.atoms.get_potential_energy())
    assert last.info["time_ps"] == pytest.approx(0.006)
    rows = (tmp_path / LOG).read_text().splitlines()
    assert rows[0].startswith("step,time_ps,stage,target_K,temperature_K,potential_eV,kinetic_eV")
    assert [row.split(",")[0] for row in rows[1:]] == ["0", "5", "10", "12"]
    assert float(rows[1].split(",")[9]) == pytest.approx(6.0 * 6.5 * 7.0)


def test_the_logged_pressure_is_that_of_energy_differences(tmp_path, tiny_model):
    calculator = TensorNetCalculator(tiny_model, device="cpu", dtype="float64")
    settings = Settings(stages=(Stage("npt", 1),), every=1, pressure=1000.0)
    simulation = Simulation.start(water_box(), calculator, settings, tmp_path)
    simulation.run()
    names, *rows = (line.split(",") for line in (tmp_path / LOG).read_text().splitlines())
    atoms = simulation.atoms
    strain, energies, volumes = 1e-4, [], []
    for scale in (1 - strain, 1 + strain):
        scaled = atoms.copy()
        scaled.set_cell(scale * atoms.cell.array, scale_atoms=True)
        scaled.calc = calculator
        kinetic = atoms.get_kinetic_energy() / scale**2  # as momenta shrink
        energies.append(scaled.get_potential_energy() + kinetic)
        volumes.append(scaled.get_volume())
    slope = (energies[0] - energies[1]) / (volumes[1] - volumes[0])
    logged = dict(zip(names, rows[-1], strict=True))
    assert float(logged["pressure_bar"]) * units.bar == pytest.approx(slope, rel=1e-4)


def test_directories_are_respected(tmp_path):
    atoms = molecule("CH3CH2OH")
    settings = Settings(stages=(Stage("nve", 4),), every=2)
    Simulation.start(atoms, Springs(atoms.positions), settings, tmp_path / "a").run()
    (tmp_path / "a" / "notes.txt").write_text("mine")
    before = contents(tmp_path / "a")
    with pytest.raises(OutputError, match="is not empty"):
        Simulation.start(atoms, Springs(atoms.positions), settings, tmp_path / "a")
    with pytest.raises(OutputError, match="is a file"):
        Simulation.start(atoms, Springs(atoms.positions), settings, tmp_path / "a" / LOG)
    with pytest.raises(OutputError, match="cannot write"):
        Simulation.start(atoms, Springs(atoms.positions), settings, tmp_path / "a" / LOG / "sub")
    npt = Settings(stages=(Stage("npt", 2),))
    with pytest.raises(InputError, match="periodic in three directions"):
        Simulation.start(atoms, Springs(atoms.positions), npt, tmp_path / "a", overwrite=True)
    assert contents(tmp_path / "a") == before
    again = Simulation.start(
        atoms, Springs(atoms.positions), settings, tmp_path / "a", overwrite=True
    )
    again.run()
    assert contents(tmp_path / "a") == before
    assert (tmp_path / "a" / "notes.txt").read_text() == "mine"
    assert not [path for path in (tmp_path / "a").iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize(
    "energy", [float("nan"), float("inf"), InputError("the position of atom 0 is NaN")]
)
def test_a_failure_names_the_step_and_leaves_a_restart(tmp_path, energy):
    atoms = molecule("CH3CH2OH")
    calculator = FailsAfter(atoms.positions, 13, energy)
    settings = Settings(stages=(Stage("nve", 50),), every=5)
    simulation = Simulation.start(atoms, calculator, settings, tmp_path)
    with pytest.raises(
        SimulationError, match=r"blew up in step 13 .*smaller time step; .*restart\.npz"
    ):
        simulation.run()
    assert load_restart(tmp_path / RESTART).state.step == 10
    assert len(ase.io.read(tmp_path / TRAJECTORY, index=":")) == 3


@pytest.mark.filterwarnings("ignore::mlff_triton.dynamics.failures.TimeStepWarning")
def test_a_hot_simulation_is_stopped(tmp_path):
    atoms = molecule("CH3CH2OH")
    settings = Settings(stages=(Stage("nve", 500),), timestep=30, every=1)
    simulation = Simulation.start(atoms, Springs(atoms.positions), settings, tmp_path)
    with pytest.raises(SimulationError, match="blew up"):
        simulation.run()
    frames = ase.io.read(tmp_path / TRAJECTORY, index=":")
    assert all(frame.get_temperature() <= 13_000 for frame in frames)


def test_an_unsound_energy_writes_nothing(tmp_path):
    atoms = molecule("CH3CH2OH")
    calculator = FailsAfter(atoms.positions, 0, float("nan"))
    with pytest.raises(InputError, match="check its geometry"):
        Simulation.start(atoms, calculator, Settings(), tmp_path / "run")
    assert not (tmp_path / "run").exists()
