"""XTC, the compressed format of GROMACS: positions, cell, step and time."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from mlff_triton.dynamics.trajectories.frame import Frame
from mlff_triton.dynamics.trajectories.mdanalysis import (
    check_cell,
    encode,
    import_formats,
)
from mlff_triton.dynamics.trajectories.trajectory_file import TrajectoryFile
from mlff_triton.errors import InputError

PRECISION = 1000.0  # integers per nm
NM = 10.0  # Å
LARGEST = 2**20  # in integers; from four times this on, the library garbles some positions

# Sizes in bytes
HEADER = 56
COMPRESSION_HEADER = 36  # ends with the size of the compressed positions
UNCOMPRESSED_ATOMS = 9  # frames of up to this number of atoms hold float32


class XTCTrajectory(TrajectoryFile):
    """Positions (nm, three decimals), cell (nm), step and time (ps) of each frame.

    Readers get float32. Up to nine atoms are not rounded.

    Parameters and errors are those of `TrajectoryFile`. An `InputError` says that MDAnalysis is
    missing.
    """

    def __init__(self, path: Path, size: int) -> None:
        _, self._library = import_formats()
        super().__init__(path, size)

    def _encode(self, frame: Frame) -> bytes:
        check_cell(frame.cell, frame.pbc)
        positions = frame.positions / NM
        if not np.abs(positions).max() * PRECISION < LARGEST:  # also for NaN
            raise InputError("the positions are not finite, or too large for XTC: write .xyz")
        if not -(2**31) <= frame.step < 2**31:
            raise InputError(f"step {frame.step} is too large for XTC: write .xyz or .dcd")
        box = frame.cell / NM if frame.pbc.any() else np.zeros((3, 3))

        def write(path: str) -> None:
            with self._library.XTCFile(path, "w") as file:
                file.write(
                    positions.astype(np.float32, order="C"),
                    box.astype(np.float32, order="C"),
                    frame.step,
                    frame.time_ps,
                    PRECISION,
                )

        return encode(write, lambda data: _frame_size(data, len(positions)))


def _frame_size(data: bytes, atoms: int) -> int:
    """Return the size that a frame should have in bytes, or 0 if its beginning is incomplete."""
    if atoms <= UNCOMPRESSED_ATOMS:
        return HEADER + 12 * atoms
    start = HEADER + COMPRESSION_HEADER
    if len(data) < start:
        return 0
    (compressed,) = struct.unpack_from(">i", data, start - 4)
    return int(start + -(-compressed // 4) * 4)
