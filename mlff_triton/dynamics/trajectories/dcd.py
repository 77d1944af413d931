"""DCD: positions in float32 and the cell, in the conventions of CHARMM.

A file has a header, which contains the number of frames, and frames of equal size.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
from ase import units
from ase.cell import Cell

from mlff_triton._common.files import reported
from mlff_triton.dynamics.trajectories.frame import Frame
from mlff_triton.dynamics.trajectories.mdanalysis import (
    check_cell,
    encode,
    import_formats,
)
from mlff_triton.dynamics.trajectories.trajectory_file import TrajectoryFile
from mlff_triton.errors import InputError, OutputError

AKMA_PS = (units.kcal / units.mol) ** -0.5 / (1000 * units.fs)  # CHARMM's unit of time
REMARKS = "mlff-triton md"

# Offsets in the header, in bytes
FRAME_COUNT = 8
HAS_CELL = 48
CHARMM_VERSION = 84  # 0 in files of X-PLOR, where the time step is longer and covers `HAS_CELL`
TITLE_SIZE = 92
MINIMAL_HEADER = 112  # without its title


class DCDTrajectory(TrajectoryFile):
    """Positions (float32, Å) and cell (lengths in Å, angles in degrees) of periodic structures.

    The header holds the time step and the interval, from which readers compute times. They are
    wrong for frames outside this interval, such as the last frame of a stage.

    Parameters
    ----------
    path, size
        Same as for `TrajectoryFile`.
    timestep_ps : float
        Time step in ps.
    interval : int
        Number of time steps between frames.

    Raises
    ------
    InputError
        If MDAnalysis is not installed.
    OutputError
        If an existing file is shorter than ``size``, does not end with a frame there, or cannot be
        read.
    """

    def __init__(self, path: Path, size: int, timestep_ps: float, interval: int) -> None:
        self._library, _ = import_formats()
        self._timestep = timestep_ps / AKMA_PS
        self._interval = interval
        self._count = 0
        self._layout: tuple[int, bool] | None = None  # number of atoms, and whether there is a cell
        super().__init__(path, size)
        if size and path.exists():
            self._count_frames(path, size)

    def cut(self) -> None:
        """Remove what follows the frames to keep, and count these in the header.

        Raises
        ------
        OutputError
            If the file cannot be written.
        """
        super().cut()
        if self._count:
            self._write_count()

    def append(self, frame: Frame) -> None:
        """Append a frame and count it in the header.

        Raises
        ------
        InputError
            If the frame differs in atoms or periodicity from the first one, or its cell is rotated.
        OutputError
            If it cannot be written.
        """
        record = self._encode(frame)
        self._file.append(record)
        self._layout = (len(frame.numbers), bool(frame.pbc.any()))
        self._count += 1
        if self._count > 1:
            self._write_count()

    def _encode(self, frame: Frame) -> bytes:
        atoms, has_cell = len(frame.numbers), bool(frame.pbc.any())
        if self._layout not in (None, (atoms, has_cell)):
            raise InputError(
                f"all frames of {self.path} must have equal atoms and periodic directions: start "
                "another trajectory"
            )
        check_cell(frame.cell, frame.pbc)
        a, b, c, alpha, beta, gamma = Cell(frame.cell).cellpar()

        def write(path: str) -> None:
            with self._library.DCDFile(path, "w") as file:
                file.write_header(REMARKS, atoms, 0, self._interval, self._timestep, has_cell)
                file.write(
                    frame.positions.astype(np.float32, order="C"), [a, gamma, b, beta, alpha, c]
                )

        frame_size = _frame_size(atoms, has_cell)
        data = encode(write, lambda data: _header_size(data) + frame_size)
        return data if self._count == 0 else data[-frame_size:]

    def _count_frames(self, path: Path, size: int) -> None:
        """Read the layout of an existing file, and the number of its frames up to a size."""
        with reported(path), path.open("rb") as file:
            start = file.read(MINIMAL_HEADER)
            header_size = _header_size(start)
            file.seek(max(header_size - 8, 0))
            end = file.read(8)
        atoms = rest = 0
        if header_size and start[4:8] == b"CORD" and len(end) == 8:
            (atoms,) = struct.unpack_from("=i", end)
            (has_cell,) = struct.unpack_from("=i", start, HAS_CELL)
            (version,) = struct.unpack_from("=i", start, CHARMM_VERSION)
        if atoms > 0:
            self._layout = (atoms, bool(version and has_cell))
            self._count, rest = divmod(size - header_size, _frame_size(*self._layout))
        if rest or self._count < 1:
            raise OutputError(
                f"{path} does not end with a frame at byte {size}: restore the original"
            )

    def _write_count(self) -> None:
        self._file.overwrite(FRAME_COUNT, struct.pack("=i", self._count))


def _header_size(start: bytes) -> int:
    """Return the size of a header in bytes, or 0 if its beginning is incomplete."""
    if len(start) < MINIMAL_HEADER:
        return 0
    (title,) = struct.unpack_from("=i", start, TITLE_SIZE)
    return MINIMAL_HEADER + int(title)


def _frame_size(atoms: int, has_cell: bool) -> int:
    """Return the size of a frame in bytes: x, y, z and the cell, each between two lengths."""
    return 3 * (4 * atoms + 8) + has_cell * (6 * 8 + 8)
