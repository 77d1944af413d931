"""Output files of a run, which never contain incomplete records.

``trajectory.xyz`` and ``log.csv`` grow by complete records and can be truncated to an earlier
length. Other files are replaced atomically.
"""

from __future__ import annotations

import dataclasses
import io
import os
from dataclasses import dataclass
from pathlib import Path

import ase.io
from ase import Atoms, units
from ase.calculators.calculator import PropertyNotImplementedError
from ase.calculators.singlepoint import SinglePointCalculator

from mlff_triton._common.files import reported
from mlff_triton.errors import OutputError

TRAJECTORY = "trajectory.xyz"
LOG = "log.csv"
RESTART = "restart.npz"
SUMMARY = "summary.png"
OUTPUTS = (TRAJECTORY, LOG, RESTART, SUMMARY)


@dataclass(frozen=True)
class LogRow:
    """One line of ``log.csv``; None becomes an empty field."""

    step: int
    time_ps: float
    stage: str
    temperature_K: float  # noqa: N815
    potential_eV: float  # noqa: N815
    kinetic_eV: float  # noqa: N815
    total_eV: float  # noqa: N815
    conserved_eV: float  # noqa: N815
    volume_A3: float | None  # noqa: N815
    pressure_bar: float | None

    FORMATS = ("d", ".9g", "s", ".4f", ".9f", ".9f", ".9f", ".9f", ".6f", ".4f")

    @classmethod
    def header(cls) -> str:
        """Return the first line of the file."""
        return ",".join(field.name for field in dataclasses.fields(cls)) + "\n"

    def line(self) -> str:
        """Format the row as a line of the file."""
        values = dataclasses.astuple(self)
        texts = (
            "" if value is None else format(value, spec)
            for value, spec in zip(values, self.FORMATS, strict=True)
        )
        return ",".join(texts) + "\n"


def observe(atoms: Atoms, step: int, time: float, stage: str, conserved: float) -> LogRow:
    """Compute a log row from the calculator's current results.

    The temperature refers to 3N degrees of freedom. The pressure includes the kinetic contribution.
    """
    potential, kinetic = atoms.get_potential_energy(), atoms.get_kinetic_energy()
    volume = pressure = None
    if atoms.pbc.all():
        volume = float(atoms.get_volume())
        pressure = _pressure(atoms)
    return LogRow(
        step=step,
        time_ps=time,
        stage=stage,
        temperature_K=float(atoms.get_temperature()),
        potential_eV=float(potential),
        kinetic_eV=float(kinetic),
        total_eV=float(potential + kinetic),
        conserved_eV=conserved,
        volume_A3=volume,
        pressure_bar=pressure,
    )


def _pressure(atoms: Atoms) -> float | None:
    """Compute the pressure in bar, or return None if the calculator has no stress."""
    try:
        stress = atoms.get_stress(voigt=False, include_ideal_gas=True)
    except PropertyNotImplementedError:
        return None
    return float(-stress.trace() / 3 / units.bar)


def frame(atoms: Atoms, row: LogRow) -> str:
    """Format a frame of extended XYZ with energy, momenta, forces, step, time and stage."""
    snapshot = atoms.copy()
    snapshot.calc = SinglePointCalculator(
        snapshot, energy=row.potential_eV, forces=atoms.get_forces()
    )
    snapshot.info |= {"step": row.step, "time_ps": row.time_ps, "stage": row.stage}
    columns = ["symbols", "positions", "momenta", "forces"]
    if atoms.has("masses"):
        columns.append("masses")
    text = io.StringIO()
    ase.io.write(text, snapshot, format="extxyz", columns=columns)
    return text.getvalue()


class RecordFile:
    """A text file that grows by complete records.

    Parameters
    ----------
    path : path
        The file. The first record creates it.
    size : int
        Number of bytes to keep of an existing file, which is truncated to it.

    Raises
    ------
    OutputError
        If an existing file is shorter than ``size``, or cannot be written.
    """

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        self.size = size
        with reported(path):
            present = path.stat().st_size if path.exists() else 0
            if present < size:
                raise OutputError(
                    f"{path} has {present} bytes, but the restart file expects {size}: "
                    "restore the original"
                )
            if present:
                os.truncate(path, size)

    def append(self, record: str) -> None:
        """Append a record in one system call. If that fails, remove the part already written."""
        data = record.encode()
        with reported(self.path), self.path.open("ab", buffering=0) as file:
            try:
                written = file.write(data)
            except OSError:
                file.truncate(self.size)
                raise
            if written != len(data):
                file.truncate(self.size)
                raise OutputError(f"cannot write {self.path}: the disk is full, free some space")
        self.size += len(data)


def check_directory(directory: Path, overwrite: bool) -> None:
    """Raise an `OutputError` if a new run must not write to a directory; modify nothing."""
    if directory.exists() and not directory.is_dir():
        raise OutputError(f"{directory} is a file: choose another --out")
    with reported(directory):
        occupied = directory.exists() and any(directory.iterdir())
    if occupied and not overwrite:
        raise OutputError(
            f"{directory} is not empty: choose another --out, or use --overwrite or "
            f"--restart {directory / RESTART}"
        )


def clear_directory(directory: Path) -> None:
    """Create a directory and remove the outputs of an earlier run from it, but no other files."""
    with reported(directory):
        directory.mkdir(parents=True, exist_ok=True)
        for name in OUTPUTS:
            (directory / name).unlink(missing_ok=True)
