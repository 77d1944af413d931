"""The command ``mlff-triton md`` in a new process, as a user would run it."""

from __future__ import annotations

import csv
import importlib.util
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import ase.io
import numpy as np
import torch

from benchmarks.dynamics.cases import FRAME_EVERY, FRICTION, TEMPERATURE, TIME_STEP, Case, Plan
from benchmarks.dynamics.melted import FloatArray, Start
from benchmarks.systems.models import CHECKOUT, SHIPPED, model
from benchmarks.systems.systems import System
from mlff_triton.checkpoints import save_model
from mlff_triton.dynamics import load_restart

COMMAND = (sys.executable, "-c", "from mlff_triton.cli.main import main; main()", "md")
WALL_TIME = re.compile(r"wall time\W+([\d.]+) s for (\d+) steps")


class CommandError(Exception):
    """The command has failed, with its last line on stderr."""


@dataclass(frozen=True)
class Run:
    """A finished run of the command.

    Attributes
    ----------
    ms, total_ms : float
        Time per step in ms: of the steps alone, as the command reports it, and of the process.
    system : System
        Systems in their last states.
    energy : float64 [B]
        Last potential energy of each system in the logs, eV.
    temperatures : float64 [M]
        Mean temperature of the systems in each log row after the first, K.
    """

    ms: float
    total_ms: float
    system: System
    energy: FloatArray
    temperatures: FloatArray


def run(
    case: Case,
    start: Start,
    device: torch.device,
    plan: Plan,
    folder: Path,
    threads: int | None = None,
) -> Run:
    """Run the command on the first system of a start, in a folder.

    By default, it chooses its number of threads itself.

    Raises
    ------
    CommandError
        If it fails.
    """
    arguments = [*COMMAND, *_options(case, start, device, plan, folder)]
    environment = os.environ | {"COLUMNS": "200", "NO_COLOR": "1"}
    if threads is not None:
        arguments.append(f"--threads={threads}")
        environment["OMP_NUM_THREADS"] = str(threads)
    begun = time.perf_counter()
    done = subprocess.run(  # noqa: S603 - the command is ours
        arguments,
        cwd=CHECKOUT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    total = time.perf_counter() - begun
    found = WALL_TIME.search(done.stdout)
    if done.returncode or found is None:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
        raise CommandError(f"exit code {done.returncode}: {lines[-1]}")
    steps = int(found[2])
    energy, temperatures = _read_logs(folder / "out")
    return Run(
        ms=1000 * float(found[1]) / steps,
        total_ms=1000 * total / steps,
        system=_last_system(folder / "out"),
        energy=energy,
        temperatures=temperatures,
    )


def _options(case: Case, start: Start, device: torch.device, plan: Plan, folder: Path) -> list[str]:
    """Write the structure, and perhaps the model, and return the arguments of the command."""
    structure = folder / "structure.traj"
    ase.io.write(structure, start.images()[0])
    options = {
        "steps": plan.steps(case),
        "ensemble": case.ensemble,
        "temperature": TEMPERATURE,
        "timestep": TIME_STEP,
        "friction": FRICTION,
        "replicas": case.replicas,
        "every": FRAME_EVERY,
        "log-every": plan.log_every(case),
        "trajectory": "dcd" if importlib.util.find_spec("MDAnalysis") else "xyz",
        "device": device,
        "out": folder / "out",
    }
    options["model"] = SHIPPED
    if case.model != "shipped":
        options["model"] = folder / "model.safetensors"
        save_model(model(case.model), folder / "model.safetensors")
    return [str(structure), *(f"--{name}={value}" for name, value in options.items())]


def _last_system(folder: Path) -> System:
    """Return the systems of the restart file, in double precision."""
    snapshot = load_restart(folder / "restart.npz")
    systems, state = snapshot.systems, snapshot.state
    return System(
        numbers=np.concatenate([atoms.numbers for atoms in systems]).astype(np.int64),
        positions=state.positions,
        cell=state.cell[0] if systems[0].pbc.all() else None,
        batch=np.repeat(np.arange(len(systems)), [len(atoms) for atoms in systems]),
    )


def _read_logs(folder: Path) -> tuple[FloatArray, FloatArray]:
    """Return the last energy of each system, and the mean temperature in each later row."""
    energies, temperatures = [], []
    for path in sorted(folder.glob("log*.csv")):
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        energies.append(float(rows[-1]["potential_eV"]))
        temperatures.append([float(row["temperature_K"]) for row in rows[1:]])
    return np.array(energies), np.mean(temperatures, axis=0)
