"""Systems that several processes move: the same files as with one, and one line if one fails."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from multiprocessing import active_children
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from ase.build import molecule
from hypothesis import given
from hypothesis import strategies as st

from mlff_triton import TensorNetCalculator
from mlff_triton._common.devices import find_devices
from mlff_triton.dynamics import Monitor, Settings, Simulation, Stage, load_restart
from mlff_triton.dynamics.divided_dynamics import shares
from mlff_triton.dynamics.division import DeviceProcesses
from mlff_triton.dynamics.outputs import RESTART, outputs_in
from mlff_triton.errors import DeviceMemoryError, InputError, SimulationError
from mlff_triton.testing import water_box
from tests.support.springs import Springs, stop_at
from tests.support.tensornets import model_of

MODEL = model_of(num_layers=1, hidden_channels=16, num_rbf=6)
TWO = "cpu,cpu"
SETTINGS = Settings(
    stages=(Stage("nvt", 12), Stage("nve", 6)),
    temperature=(300.0, 310.0, 320.0),
    every=4,
    log_every=2,
    threads=1,
    reactive=True,
)


def calculator(model=MODEL) -> TensorNetCalculator:
    return TensorNetCalculator(model, device="cpu")


def molecules():
    return [molecule("CH3CH2OH"), molecule("H2O"), molecule("CH3OH")]


def start(folder, settings=SETTINGS, device=TWO, systems=None) -> Simulation:
    given = systems or molecules()
    return Simulation.start(given, calculator(), settings, folder, device=device)


def contents(folder):
    return {
        path.name: path.read_bytes()
        for path in outputs_in(folder)
        if path.suffix in (".xyz", ".csv")
    }


def state(folder):
    return load_restart(folder / RESTART).state


def assert_equal(folder, other):
    assert contents(folder) == contents(other)
    for found, expected in zip(*map(vars, map(state, (folder, other))), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "changes",
    [
        {"minimize": True, "thermostat": "rescaling"},
        {"stages": (Stage("nvt", 18),), "exchange_every": 3},
    ],
    ids=["minimization", "exchange"],
)
def test_a_division_changes_no_bit(tmp_path, changes):
    settings = replace(SETTINGS, **changes)
    for name, device in (("one", "cpu"), ("two", TWO)):
        simulation = start(tmp_path / name, settings, device)
        assert simulation.run()
    assert len(contents(tmp_path / "two")) == 6
    assert_equal(tmp_path / "two", tmp_path / "one")
    assert not active_children()


def test_a_barostat_acts_on_each_system(tmp_path):
    """On a CPU, PyTorch rounds a function of one number in another way than that of many."""
    settings = replace(SETTINGS, stages=(Stage("npt", 22),), temperature=300.0)
    boxes = [water_box(24, seed=seed) for seed in range(2)]
    for name, device in (("one", None), ("two", TWO)):
        assert start(tmp_path / name, settings, device, boxes).run()
    found, expected = (state(tmp_path / name) for name in ("two", "one"))
    assert (expected.cell != boxes[0].cell.array).any()
    for name, values in vars(expected).items():
        np.testing.assert_allclose(getattr(found, name), values, rtol=1e-9, atol=1e-9)


def test_a_run_continues_on_other_devices(tmp_path):
    assert start(tmp_path / "whole", device=None).run()
    for first, then in ((TWO, None), ("cpu", TWO)):
        folder = tmp_path / str(then)
        simulation = start(folder, device=first)
        assert not simulation.run(should_stop=stop_at(simulation, 7), block=1)
        snapshot = load_restart(folder / RESTART)
        assert Simulation.resume(snapshot, calculator(), folder, device=then).run()
        assert contents(folder) == contents(tmp_path / "whole")


class Killer(Monitor):
    """Kills a process of the run at a step."""

    def __init__(self, step):
        self._step = step

    def stepped(self, step):
        if step == self._step:
            os.kill(active_children()[-1].pid, signal.SIGKILL)


def test_a_process_that_dies_ends_the_run_with_a_restart(tmp_path):
    assert start(tmp_path / "whole", device=None).run()
    simulation = start(tmp_path / "broken")
    with pytest.raises(SimulationError, match=r"process of cpu has ended.*holds the last good"):
        simulation.run(Killer(6), block=1)
    assert not active_children()
    snapshot = load_restart(tmp_path / "broken" / RESTART)
    assert snapshot.state.step == 4
    assert Simulation.resume(snapshot, calculator(), tmp_path / "broken", device=TWO).run()
    assert contents(tmp_path / "broken") == contents(tmp_path / "whole")


def test_a_failure_names_the_step_and_the_atom_as_one_process_does(tmp_path):
    """Two atoms of the last system fly into each other."""
    settings = replace(SETTINGS, stages=(Stage("nve", 40),), keep_velocities=True)
    messages = []
    for name, device in (("one", None), ("two", TWO)):
        systems = molecules()
        for atoms in systems:
            atoms.set_velocities(np.zeros_like(atoms.positions))
        speeds = np.zeros_like(atoms.positions)
        speeds[0] = 0.5 * (atoms.positions[1] - atoms.positions[0])
        atoms.set_velocities(speeds)
        simulation = start(tmp_path / name, settings, device, systems)
        with pytest.raises(SimulationError, match="of replica 2, where the force") as failure:
            simulation.run()
        messages.append(str(failure.value).replace(f"{name}{os.sep}", ""))
        assert not active_children()
    assert messages[0] == messages[1]


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("cpu,cpu,cpu,cpu", "4 devices cannot share 3 simulations: name fewer"),
        ("cpu,auto", "'auto' stands alone"),
        ("cpu,", "device='' is unknown"),
        ("cpu,mps", "device='mps' is not supported"),
    ],
)
def test_devices_that_cannot_share_the_systems(tmp_path, device, message):
    with pytest.raises(InputError, match=message):
        start(tmp_path / "run", device=device)
    assert not (tmp_path / "run").exists()


def test_other_calculators_have_one_device(tmp_path):
    springs = Springs(np.zeros((1, 3)))
    with pytest.raises(InputError, match="need a TensorNetCalculator, not Springs"):
        Simulation.start(molecules(), springs, SETTINGS, tmp_path / "run", device=TWO)


def test_gpus_are_named_once(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    names = [str(device) for device in find_devices("cuda:1,cuda")]
    assert names == ["cuda:1", "cuda:0"]
    with pytest.raises(InputError, match="has cuda:0 twice: name each GPU once"):
        find_devices("cuda,cuda:0")
    with pytest.raises(InputError, match="has the CPU and GPUs: use either"):
        find_devices("cuda:0,cpu")


@given(st.lists(st.integers(1, 50), min_size=1, max_size=12), st.data())
def test_shares_are_in_order_and_not_empty(counts, data):
    n_shares = data.draw(st.integers(1, len(counts)))
    parts = shares(counts, n_shares)
    assert len(parts) == n_shares
    assert [k for part in parts for k in range(len(counts))[part]] == [*range(len(counts))]
    assert all(part.stop > part.start for part in parts)


def test_equal_systems_are_shared_evenly():
    parts = shares([21] * 256, 2)
    assert [part.stop - part.start for part in parts] == [128, 128]


def test_replicas_that_fit_are_counted_for_all_devices(tmp_path, monkeypatch):
    def prepared(systems, *_):
        if len(systems) > 2:
            raise DeviceMemoryError("too little memory")
        return SimpleNamespace(begin=lambda *_, **__: None)

    def refuse(*_):
        raise DeviceMemoryError("too little memory")

    settings = replace(SETTINGS, temperature=300.0, keep_velocities=True)
    systems = [atoms for _ in range(3) for atoms in molecules()]
    for atoms in systems:
        atoms.set_momenta(np.zeros_like(atoms.positions))
    simulation = start(tmp_path, settings, systems=systems)
    monkeypatch.setattr(DeviceProcesses, "dynamics", refuse)
    monkeypatch.setattr("mlff_triton.dynamics.simulation.make_dynamics", prepared)
    with pytest.raises(DeviceMemoryError, match=r"9 replicas need more memory .*: 4 would fit"):
        simulation.run()
