"""The format of a trajectory, chosen by its suffix."""

from __future__ import annotations

from pathlib import Path

from ase import Atoms

from mlff_triton.dynamics.trajectories.dcd import DCDTrajectory
from mlff_triton.dynamics.trajectories.extended_xyz import ExtendedXYZTrajectory
from mlff_triton.dynamics.trajectories.mdanalysis import check_cell, import_formats
from mlff_triton.dynamics.trajectories.trajectory_file import TrajectoryFile
from mlff_triton.dynamics.trajectories.xtc import XTCTrajectory
from mlff_triton.errors import InputError

TEXT = (".xyz", ".extxyz")
BINARY = (".dcd", ".xtc")


def check_trajectory(path: str | Path, atoms: Atoms) -> None:
    """Raise an `InputError` if a structure cannot be recorded in a file; write nothing.

    Parameters
    ----------
    path : str or path
        Name of the trajectory, which need not exist.
    atoms : Atoms
        The structure.

    Raises
    ------
    InputError
        If the suffix is unknown, if MDAnalysis is needed and not installed, or if the format cannot
        represent the cell.
    """
    if _suffix(path) in BINARY:
        import_formats()
        check_cell(atoms.cell.array, atoms.pbc)


def open_trajectory(
    path: str | Path, *, timestep_ps: float, interval: int, size: int = 0
) -> TrajectoryFile:
    """Open a trajectory to append frames, in the format of its suffix.

    Parameters
    ----------
    path : str or path
        A file named .xyz, .extxyz, .dcd or .xtc. The first frame creates it.
    timestep_ps : float
        Time step in ps, for formats that do not store the time of each frame.
    interval : int
        Number of time steps between frames, for the same formats.
    size : int, optional
        Number of bytes to keep of an existing file, from `TrajectoryFile.size`. Nothing is modified
        here: `TrajectoryFile.cut` removes the rest.

    Returns
    -------
    TrajectoryFile

    Raises
    ------
    InputError
        If the suffix is unknown, or if MDAnalysis is needed and not installed.
    OutputError
        If an existing file is shorter than ``size``, or cannot be read.
    """
    file, suffix = Path(path), _suffix(path)
    if suffix == ".dcd":
        return DCDTrajectory(file, size, timestep_ps, interval)
    if suffix == ".xtc":
        return XTCTrajectory(file, size)
    return ExtendedXYZTrajectory(file, size)


def _suffix(path: str | Path) -> str:
    suffix = Path(path).suffix.lower()
    if suffix not in TEXT + BINARY:
        raise InputError(
            f"unknown trajectory format {str(path)!r}: end it in {', '.join(TEXT + BINARY)}"
        )
    return suffix
