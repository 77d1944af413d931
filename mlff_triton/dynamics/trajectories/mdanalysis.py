"""MDAnalysis, which encodes DCD and XTC, and the cells that both formats can represent.

MDAnalysis cannot append to a file. It therefore writes every frame to a separate file, whose bytes
are appended to the trajectory.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mlff_triton._common.files import reported
from mlff_triton._common.remedies import install
from mlff_triton.errors import InputError, OutputError

TOLERANCE = 1e-6  # of the longest lattice vector


def import_formats() -> tuple[Any, Any]:
    """Return the modules of MDAnalysis for DCD and XTC.

    Raises
    ------
    InputError
        If MDAnalysis is not installed.
    """
    try:
        from MDAnalysis.lib.formats import libdcd, libmdaxdr
    except ImportError as error:
        raise InputError(f"DCD and XTC need MDAnalysis: {install('trajectories')}") from error
    return libdcd, libmdaxdr


def encode(write: Callable[[str], None], expected_size: Callable[[bytes], int]) -> bytes:
    """Return the contents of a temporary file.

    Parameters
    ----------
    write : callable
        Function that writes the file, given its path.
    expected_size : callable
        Function that returns the size in bytes that the contents should have, or 0 if they are too
        short to tell. MDAnalysis does not report errors of its last writes.

    Raises
    ------
    OutputError
        If the file cannot be written.
    """
    folder = Path(tempfile.gettempdir())
    with reported(folder), tempfile.NamedTemporaryFile(dir=folder) as scratch:
        write(scratch.name)
        data = scratch.read()
    if len(data) != expected_size(data):
        raise OutputError(f"cannot write {folder}: the disk is full, free some space")
    return data


def check_cell(cell: npt.NDArray[np.float64], pbc: npt.NDArray[np.bool_]) -> None:
    """Raise an `InputError` if lengths and angles do not determine the lattice vectors.

    Parameters
    ----------
    cell : float64 [3, 3]
        Lattice vectors as rows, in Å.
    pbc : bool [3]
        Periodic directions.
    """
    if not pbc.any():
        return
    beyond = np.abs(np.triu(cell, k=1)).max()
    if beyond > TOLERANCE * np.abs(cell).max() or (cell.diagonal() < 0).any():
        raise InputError(
            "DCD and XTC need a cell with the vector a along x and b in the xy plane: rotate the "
            "structure, or write .xyz"
        )
