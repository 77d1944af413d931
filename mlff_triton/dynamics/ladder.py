"""Replicas that exchange temperatures, sorted by temperature.

The files of a run follow replicas, and each replica visits many temperatures.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from mlff_triton.dynamics.outputs import LOG, RESTART, names, trajectory_names
from mlff_triton.dynamics.restart import load_restart
from mlff_triton.dynamics.settings import CHOICES
from mlff_triton.errors import InputError


class Visit(NamedTuple):
    """A frame of a trajectory: its time step, the file, and the number of the frame in it."""

    step: int
    path: Path
    number: int


def frames_by_temperature(directory: str | Path) -> dict[float, list[Visit]]:
    """Return the frames of a run of replicas at each temperature in K, in order of time.

    Parameters
    ----------
    directory : str or path
        Directory of the run, with its logs and restart file. Trajectories may have any format, if
        it was not changed during the run.

    Raises
    ------
    InputError
        If the restart file is missing or damaged, or the run has changed the format.

    Examples
    --------
    >>> for temperature, visits in frames_by_temperature("ladder").items():  # doctest: +SKIP
    ...     images = [ase.io.read(visit.path, visit.number) for visit in visits]
    ...     ase.io.write(f"{temperature:.1f}K.xyz", images)
    """
    folder = Path(directory)
    snapshot = load_restart(folder / RESTART)
    settings, count = snapshot.settings, len(snapshot.systems)
    found: dict[float, list[Visit]] = defaultdict(list)
    files = zip(names(LOG, count), trajectory_names(settings, count), strict=True)
    for log, trajectory in files:
        _check_format(folder / trajectory)
        with (folder / log).open(newline="") as file:
            rows = [row for row in csv.DictReader(file) if settings.is_due(int(row["step"]))]
        for number, row in enumerate(rows):
            visit = Visit(int(row["step"]), folder / trajectory, number)
            found[float(row["target_K"])].append(visit)
    return {temperature: sorted(found[temperature]) for temperature in sorted(found)}


def _check_format(trajectory: Path) -> None:
    """Raise an `InputError` if a trajectory began in another format, because frames then differ."""
    for form in CHOICES["trajectory"]:
        other = trajectory.with_suffix(f".{form}")
        if other != trajectory and other.exists():
            raise InputError(
                f"{other} holds an earlier part of {trajectory}: sort the frames by their steps, "
                "which the logs have"
            )
