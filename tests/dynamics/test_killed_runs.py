"""Simulations killed at any moment continue to the bytes of a run that was not."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ase import Atoms
from ase.build import molecule

from mlff_triton import TensorNetCalculator
from mlff_triton.dynamics import Settings, Simulation, Stage, load_restart
from mlff_triton.dynamics.outputs import LOG, RESTART, names
from mlff_triton.testing import water_box

ROOT = Path(__file__).parents[2]
START = "import sys; from tests.dynamics import test_killed_runs as t; t.start(*sys.argv[1:]).run()"
SETTINGS = {
    "cpu": Settings(stages=(Stage("nvt", 30), Stage("nve", 30)), every=5, log_every=1),
    "cuda": Settings(stages=(Stage("nvt", 5000), Stage("npt", 5000)), every=50, log_every=10),
}


def systems(device: str) -> list[Atoms]:
    return [molecule("CH3OH")] * 2 if device == "cpu" else [water_box(64), water_box(70)]


def start(device: str, folder: str | Path) -> Simulation:
    calculator = TensorNetCalculator(device=device)
    return Simulation.start(systems(device), calculator, SETTINGS[device], folder)


def kill(device: str, folder: Path, delay: float) -> None:
    """Start a simulation in another process, and kill it some time after its first frame."""
    command = [sys.executable, "-c", START, device, str(folder)]
    with subprocess.Popen(command, cwd=ROOT) as process:  # noqa: S603 - the command is ours
        first = folder / RESTART
        while not (first.exists() and load_restart(first).state.step):
            assert process.poll() is None
            time.sleep(0.01)
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)


@pytest.mark.filterwarnings("ignore::mlff_triton.UnknownChemistryWarning")  # of densities
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_killed_simulation_continues_to_the_same_bytes(device, tmp_path):
    begun = time.monotonic()
    assert start(device, tmp_path / "whole").run()
    duration = time.monotonic() - begun
    for attempt in range(1 if device == "cpu" else 3):
        folder = tmp_path / f"killed-{attempt}"
        kill(device, folder, random.uniform(0, 0.7 * duration))  # noqa: S311 - no secret
        snapshot = load_restart(folder / RESTART)
        calculator = TensorNetCalculator(device=device)
        assert Simulation.resume(snapshot, calculator, folder).run()
        for name in (*names(LOG, 2), *names("trajectory.xyz", 2)):
            assert (folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
