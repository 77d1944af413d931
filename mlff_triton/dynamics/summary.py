"""Summary of a run from its ``log.csv``: energy drift and figure."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mlff_triton._common.files import replace_file
from mlff_triton.dynamics import outputs

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class StageRecord:
    """The log of one stage.

    Attributes
    ----------
    label : str
        Number and ensemble of the stage, such as "1-nvt".
    time : float64 [M]
        Time of each of the M rows in ps.
    temperature : float64 [M]
        Temperature in K.
    total, conserved : float64 [M]
        Total and conserved energy in eV; NaN if none is conserved.
    """

    label: str
    time: FloatArray
    temperature: FloatArray
    total: FloatArray
    conserved: FloatArray


@dataclass(frozen=True)
class Drift:
    """Slope of a straight line fitted to an energy, and its standard error, in eV/atom/ps.

    The standard error assumes independent residuals.
    """

    slope: float
    error: float


def read_log(path: Path) -> list[StageRecord]:
    """Read ``log.csv`` into one record per stage, in order."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    labels = list(dict.fromkeys(row["stage"] for row in rows))
    return [
        _stage_record(label, [row for row in rows if row["stage"] == label]) for label in labels
    ]


def _stage_record(label: str, rows: list[dict[str, str]]) -> StageRecord:
    names = ("time_ps", "temperature_K", "total_eV", "conserved_eV")
    columns = [np.array([float(row[name] or "nan") for row in rows]) for name in names]
    return StageRecord(label, *columns)


def energy_drift(record: StageRecord, n_atoms: int) -> Drift | None:
    """Fit the drift of the total energy; return None for fewer than three rows."""
    if len(record.time) < 3:
        return None
    time = record.time - record.time.mean()
    energy = (record.total - record.total.mean()) / n_atoms
    slope = float(time @ energy / (time @ time))
    residual = energy - slope * time
    variance = float(residual @ residual) / (len(time) - 2)
    return Drift(slope, float(np.sqrt(variance / (time @ time))))


def draw_summary(directory: Path, n_atoms: int, log: str = outputs.LOG) -> None:
    """Draw ``summary.png``: temperature and energy drift over time, with the stages marked.

    The drift is the change of the conserved energy, which is the total energy in nve, since the
    start of each stage.

    Parameters
    ----------
    directory : Path
        Directory of the run, with its ``log.csv``.
    n_atoms : int
        Number of atoms.
    log : str, optional
        Name of the log.

    Raises
    ------
    OutputError
        If the figure cannot be written.
    """
    from matplotlib.figure import Figure  # takes over half a second

    records = read_log(directory / log)
    figure = Figure(figsize=(7, 5), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True)
    for index, record in enumerate(records):
        color = f"C{index % 10}"
        drift = 1000 * (record.conserved - record.conserved[0]) / n_atoms
        top.plot(record.time, record.temperature, color=color, lw=1, label=f"stage {record.label}")
        bottom.plot(record.time, drift, color=color, lw=1)
    for axes in (top, bottom):
        for record in records[:-1]:
            axes.axvline(record.time[-1], color="0.7", lw=0.8, ls="--", zorder=0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.01)
    top.set_ylabel("temperature (K)")
    figure.legend(loc="outside upper center", ncols=min(len(records), 6), frameon=False)
    bottom.set_ylabel("energy drift (meV/atom)")
    bottom.set_xlabel("time (ps)")
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=150)
    replace_file(directory / outputs.SUMMARY, content.getvalue())
