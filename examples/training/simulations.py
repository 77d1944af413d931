"""Simulations that the same command continues where they were stopped."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms
from ase.calculators.calculator import Calculator
from ase.io import iread
from geometry import FloatArray

from mlff_triton.dynamics import Settings, Simulation, load_restart
from mlff_triton.dynamics.outputs import LOG, RESTART, names, trajectory_names
from mlff_triton.errors import InputError

FRAMES = 1000  # per stage, and ten times as many rows of the log
ROWS = 10  # of the log per frame


def steps_of(picoseconds: float) -> int:
    """Return the number of steps of the usual length that a time takes, at least one."""
    return max(1, round(1000 * picoseconds / Settings.timestep))


def recorded(steps: int) -> dict[str, Any]:
    """Return how often stages of this many steps are recorded, as settings."""
    every = max(1, steps // FRAMES)
    return {"every": every, "log_every": max(1, every // ROWS)}


def simulate(
    systems: Sequence[Atoms], calculator: Calculator, settings: Settings, folder: Path
) -> None:
    """Simulate systems in a folder, or go on with a simulation there, to the end.

    Raises
    ------
    InputError
        If the folder holds a simulation of another kind.
    SimulationError
        If the simulation falls apart. The folder holds all frames before.
    """
    formulas = " ".join(str(atoms.symbols) for atoms in systems)
    recipe = {"weights": str(calculator.parameters.get("weights", "")), "systems": formulas}
    restart = folder / RESTART
    if restart.exists():
        snapshot = load_restart(restart)
        threads = snapshot.settings.threads
        if (snapshot.recipe, snapshot.settings) != (recipe, replace(settings, threads=threads)):
            raise InputError(
                f"{folder} holds a simulation of another model or other sizes: choose another "
                "--runs, or remove it"
            )
        simulation = Simulation.resume(snapshot, calculator, folder)
    else:
        simulation = Simulation.start(systems, calculator, settings, folder, recipe=recipe)
    print(f"{folder}: {simulation.step} of {settings.total_steps} steps are done", flush=True)
    simulation.run()


def read_frames(folder: Path, settings: Settings, count: int) -> list[Iterator[Atoms]]:
    """Return the frames of each of a number of systems, with their steps in ``info["step"]``."""
    paths = [folder / name for name in trajectory_names(settings, count)]
    return [iread(path) if path.exists() else iter(()) for path in paths]


def read_logs(folder: Path, count: int, column: str, stage: str) -> list[FloatArray]:
    """Return times in ps and values of a column [rows, 2] in one stage of each system."""
    found = []
    for path in (folder / name for name in names(LOG, count)):
        lines = path.read_text().splitlines() if path.exists() else []
        rows = [row for row in csv.DictReader(lines) if row["stage"] == stage]
        values = [[float(row["time_ps"]), float(row[column])] for row in rows]
        found.append(np.array(values).reshape(-1, 2))
    return found
