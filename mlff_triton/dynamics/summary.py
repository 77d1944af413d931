"""Summary of a run from its ``log.csv``: energy drift, equilibration and figure."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mlff_triton._common.figures import figure_class
from mlff_triton._common.files import replace_file
from mlff_triton.dynamics import outputs

FloatArray = NDArray[np.float64]

ROWS_TO_JUDGE = 20
LEGEND_COLUMNS = 4  # stages that fit in a row of the figure's legend
LARGEST_DRIFT = 2.0  # standard deviations of the potential energy


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
        Total energy, with and without heat and work of thermostat and barostat, in eV; NaN in npt
        rows of earlier versions.
    target : float64 [M]
        Temperature of the thermostat in K.
    potential : float64 [M]
        Potential energy in eV.
    volume : float64 [M]
        Volume in Å^3; NaN without a cell.
    uncertainty : float64 [M]
        Largest expected error of a force in eV/Å; NaN if the model does not know it.
    """

    label: str
    time: FloatArray
    temperature: FloatArray
    total: FloatArray
    conserved: FloatArray
    target: FloatArray
    potential: FloatArray
    volume: FloatArray
    uncertainty: FloatArray


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
    names = (
        "time_ps",
        "temperature_K",
        "total_eV",
        "conserved_eV",
        "target_K",
        "potential_eV",
        "volume_A3",
        "largest_uncertainty_eV_per_A",
    )
    columns = [np.array([float(row.get(name) or "nan") for row in rows]) for name in names]
    return StageRecord(label, *columns)


def energy_drift(record: StageRecord, n_atoms: int) -> Drift | None:
    """Fit the drift of the conserved energy; return None if fewer than three rows have one."""
    known = np.isfinite(record.conserved)
    time, energy = record.time[known], record.conserved[known] / n_atoms
    if len(time) < 3:
        return None
    slope, residual = _fit_line(time, energy)
    time = time - time.mean()
    variance = float(residual @ residual) / (len(time) - 2)
    return Drift(slope, float(np.sqrt(variance / (time @ time))))


def unsettled(record: StageRecord) -> float | None:
    """Return the drift of the potential energy in the last half of a stage, over its fluctuations.

    A straight line is fitted to that half. Its change is divided by the standard deviation of the
    energies from it. The result is below 2 for 98 of 100 series of 20 independent energies without
    drift. Correlated energies of successive rows exceed it more often.

    Returns
    -------
    float or None
        The ratio; None if it is below 2, or unknown for fewer than 20 rows in the last half. None
        does not prove equilibrium: slow motions may not have begun.
    """
    half = len(record.time) // 2
    time, energy = record.time[half:], record.potential[half:]
    if len(time) < ROWS_TO_JUDGE:
        return None
    slope, residual = _fit_line(time, energy)
    change = abs(slope) * float(time[-1] - time[0])
    ratio = change / max(float(residual.std(ddof=2)), 1e-12)
    return ratio if ratio >= LARGEST_DRIFT else None


def _since_first(values: FloatArray) -> FloatArray:
    """Return the differences from the first known value."""
    known = values[np.isfinite(values)]
    return values - known[0] if len(known) else values


def _fit_line(time: FloatArray, values: FloatArray) -> tuple[float, FloatArray]:
    """Return the slope of a least-squares line, and the residuals."""
    time, values = time - time.mean(), values - values.mean()
    slope = float(time @ values / (time @ time))
    return slope, values - slope * time


def draw_summary(directory: Path, n_atoms: int, log: str = outputs.LOG) -> None:
    """Draw ``summary.png``: temperature, energies and volume over time, with the stages marked.

    Dashed lines mark the temperatures of thermostats. The drift is the change of the conserved
    energy since the start of each stage. The potential energy is relative to its last value. The
    volume is drawn if it changes, and the largest uncertainty if the model knows it. A title says
    if the last stage is `unsettled`.

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
    records = read_log(directory / log)
    volumes = np.concatenate([record.volume for record in records])
    has_volume = bool(np.ptp(volumes) > 0)  # not if NaN
    columns = min(len(records), LEGEND_COLUMNS)
    has_uncertainty = any(np.isfinite(record.uncertainty).any() for record in records)
    n_panels = 3 + has_volume + has_uncertainty
    height = 2 + 1.5 * n_panels + 0.25 * ((len(records) - 1) // columns)  # of the legend
    figure = figure_class()(figsize=(7, height), layout="constrained")
    panels = figure.subplots(n_panels, 1, sharex=True)
    last = records[-1].potential[-1]
    for index, record in enumerate(records):
        curves = [
            record.temperature,
            1000 * (record.potential - last) / n_atoms,
            1000 * _since_first(record.conserved) / n_atoms,
            *([record.volume] if has_volume else []),
            *([record.uncertainty] if has_uncertainty else []),
        ]
        marker = "." if len(record.time) == 1 else None  # a line needs two points
        for axes, curve in zip(panels, curves, strict=True):
            axes.plot(record.time, curve, color=f"C{index % 10}", lw=1, marker=marker)
        panels[0].lines[-1].set_label(f"stage {record.label}")
        if not record.label.endswith("nve"):
            panels[0].plot(record.time, record.target, color="0.3", lw=0.8, ls="--")
    labels = ["temperature (K)", "potential energy\n(meV/atom)", "energy drift\n(meV/atom)"]
    labels += ["volume (Å$^3$)"] if has_volume else []
    labels += ["largest expected\nerror (eV/Å)"] if has_uncertainty else []
    for axes, label in zip(panels, labels, strict=True):
        for record in records[:-1]:
            axes.axvline(record.time[-1], color="0.7", lw=0.8, ls="--", zorder=0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.01)
        axes.set_ylabel(label)
    if unsettled(records[-1]):
        panels[1].set_title(
            f"not equilibrated: stage {records[-1].label} drifts", fontsize="medium"
        )
    figure.legend(loc="outside upper center", ncols=columns, frameon=False)
    panels[-1].set_xlabel("time (ps)")
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=150)
    replace_file(directory / outputs.SUMMARY, content.getvalue())
