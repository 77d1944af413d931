"""Extended XYZ, with the bytes that ASE writes but much faster, and information as in `comment`."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import numpy.typing as npt
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from ase.constraints import FixAtoms

from mlff_triton.dynamics.trajectories.atom_lines import atom_lines
from mlff_triton.dynamics.trajectories.comment import comment_of, with_info
from mlff_triton.dynamics.trajectories.frame import Frame
from mlff_triton.dynamics.trajectories.trajectory_file import TrajectoryFile

COLUMNS = "species:S:1:pos:R:3:momenta:R:3:forces:R:3"
FORMATS = {"i": "%8d", "b": " %.1s"}  # by the kind of an array; texts have another


class ExtendedXYZTrajectory(TrajectoryFile):
    """Text with positions, momenta, forces, masses, uncertainties, fixed atoms, labels and more.

    The comment has energy, step and time.

    Numbers have eight decimals; energy, time and cell have all their digits.
    Parameters and errors are those of `TrajectoryFile`.
    """

    def __init__(self, path: Path, size: int) -> None:
        super().__init__(path, size)
        self._words: list[npt.NDArray[Any]] = []
        self._ends: list[bytes] = []

    def _encode(self, frame: Frame) -> bytes:
        columns = [frame.positions, frame.momenta, frame.forces]
        if frame.masses is not None:
            columns.append(frame.masses[:, None])
        if frame.uncertainty is not None:
            columns.append(frame.uncertainty[:, None])
        values = np.concatenate(columns, axis=1)
        rows = atom_lines(frame.numbers, values)
        words = [*frame.labels.values(), *([] if frame.fixed is None else [~frame.fixed])]
        if words:
            lines = zip(rows.splitlines(), self._ends_of(words), strict=True)
            rows = b"".join(line + end for line, end in lines)
        return f"{len(frame.numbers)}\n{_comment(frame)}\n".encode() + rows

    def _ends_of(self, columns: list[npt.NDArray[Any]]) -> list[bytes]:
        """Return the ends of lines; they are formatted once for equal columns."""
        if len(columns) != len(self._words) or not all(map(_is_equal, columns, self._words)):
            form = " ".join(FORMATS.get(column.dtype.kind, "%-2s") for column in columns)
            words = zip(*(map(_word, column.tolist()) for column in columns), strict=True)
            self._words, self._ends = columns, [f" {form % word}\n".encode() for word in words]
        return self._ends


def _is_equal(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> bool:
    return one is other or (one.dtype.kind == "b" and np.array_equal(one, other))


def _word(label: Any) -> Any:
    """Return a label as one word, because columns are separated by blanks."""
    return ("_".join(label.split()) or "_") if isinstance(label, str) else label


def _comment(frame: Frame) -> str:
    """Return the second line, as ASE writes it."""
    own = {"step": frame.step, "time_ps": frame.time_ps, "stage": frame.stage}
    if frame.masses is None and frame.fixed is None and not frame.labels:
        columns = COLUMNS if frame.uncertainty is None else f"{COLUMNS}:uncertainty:R:1"
        comment = comment_of(frame.cell, frame.pbc, columns, {"energy": frame.energy})
    else:
        comment = _comment_by_ase(frame)
    return with_info(comment, frame.info, own)


def _comment_by_ase(frame: Frame) -> str:
    """Return the comment of the first atom alone, with any columns."""
    first = slice(0, 1)
    atoms = Atoms(frame.numbers[first], frame.positions[first], cell=frame.cell, pbc=frame.pbc)
    atoms.set_momenta(frame.momenta[first])
    columns = ["symbols", "positions", "momenta", "forces"]
    if frame.masses is not None:
        atoms.set_masses(frame.masses[first])
        columns.append("masses")
    if frame.uncertainty is not None:
        atoms.set_array("uncertainty", frame.uncertainty[first])
        columns.append("uncertainty")
    for name, array in frame.labels.items():
        atoms.set_array(name, array[first])
        columns.append(name)
    if frame.fixed is not None:
        atoms.set_constraint(FixAtoms([0]))
        columns.append("move_mask")
    atoms.calc = SinglePointCalculator(atoms, energy=frame.energy, forces=frame.forces[first])
    text = io.StringIO()
    ase.io.write(text, atoms, format="extxyz", columns=columns)
    return text.getvalue().split("\n")[1]
