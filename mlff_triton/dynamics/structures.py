"""Reading of structures from files, or of shipped structures by name."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from ase import Atoms
from numpy.typing import NDArray

from mlff_triton._common.files import find_file
from mlff_triton._common.text import printable
from mlff_triton.calculators._total_charge import noted_charge, notes_charge_or_spin
from mlff_triton.dynamics.trajectories.frame import LABELS
from mlff_triton.errors import InputError
from mlff_triton.readers import ASYMMETRIC_UNIT, frames_of, name_of_frame, read_frame

SHIPPED = {"alanine-dipeptide-water": "alanine_dipeptide_water.xyz"}


def read_structure(source: str | Path, *, periodic: bool = True) -> Atoms:
    """Read a structure from a file that ASE supports, or a shipped one.

    The first record of PDB, CIF, SDF and MOL2 files is read, or the last frame of any other file,
    unless a frame is named. Only elements, positions, cell, masses, constraints, total charge, and
    names of atoms and residues are kept: each run draws new velocities.

    Parameters
    ----------
    source : str or path
        Name of a shipped structure (``"alanine-dipeptide-water"``) or a file, optionally with the
        number of a frame: ``"traj.xyz@3"``.
    periodic : bool, optional
        If False, drop the cell, for example of a crystal whose molecule is simulated alone.

    Returns
    -------
    Atoms
        The structure, without calculator. A PDB cell of 1 x 1 x 1 Å, which means "none" in that
        format, is dropped.

    Raises
    ------
    InputError
        If the file is missing, unreadable or empty, or has positions that are not finite.

    Examples
    --------
    >>> len(read_structure("alanine-dipeptide-water"))
    166
    """
    return clean(choose_frame(source).atoms, str(source), periodic)


def read_images(source: str | Path) -> list[Atoms]:
    """Read all frames of a file.

    Parameters
    ----------
    source : str or path
        The file.

    Returns
    -------
    list of Atoms
        The frames. Total charges and data fields of files are in ``info``.

    Raises
    ------
    InputError
        If the file is missing, too large, or not one that is read, or if a frame is damaged.
    """
    images = []
    for k, frame in enumerate(frames_of(_existing(Path(source)))):
        if isinstance(frame, str):
            name = printable(source)
            raise InputError(f"{name} cannot be read as a structure: frame {k}: {frame}")
        images.append(frame)
    return images


def _existing(path: Path) -> Path:
    """Return the path of a file, or raise `InputError` if it is missing."""
    found = find_file(path)
    if found is None:
        raise InputError(
            f"there is no structure {printable(path)!r}: give a file, or one of "
            f"{', '.join(SHIPPED)}"
        )
    return found


class Chosen(NamedTuple):
    """The frame of a file that a run begins from: its number, from 0, and that of all frames."""

    atoms: Atoms
    frame: int
    total: int


def choose_frame(source: str | Path) -> Chosen:
    """Read the frame of a file that is to be simulated, relaxed or displaced.

    Parameters
    ----------
    source : str or path
        A file, or a file and the number of a frame: ``"traj.xyz@3"`` or, from the end,
        ``"traj.xyz@-2"``. If no number is given, the last frame of a trajectory is taken, and the
        first record of PDB, CIF, SDF and MOL2 files.

    Returns
    -------
    Chosen
        The frame as it was read.

    Raises
    ------
    InputError
        If the file is missing or unreadable, has no such frame, or the frame is damaged.
    """
    if str(source) in SHIPPED:
        shipped = resources.files("mlff_triton") / "structures" / SHIPPED[str(source)]
        with resources.as_file(shipped) as path:
            given, frame = path, read_frame(path)
    else:
        given, wanted = name_of_frame(source)
        frame = read_frame(_existing(given), wanted)
    if isinstance(frame.structure, str):
        raise InputError(
            f"{printable(given)} cannot be read as a structure: frame {frame.number}: "
            f"{frame.structure}"
        )
    return Chosen(frame.structure, frame.number, frame.total)


def checked(atoms: Atoms, name: str, periodic: bool) -> Atoms:
    """Return elements, positions, cell and masses of a structure that has been read.

    Raises
    ------
    InputError
        If there are no atoms, positions are not finite, or the cell has further atoms.
    """
    if len(atoms) == 0:
        raise InputError(f"{name} contains no atoms")
    bad = ~np.isfinite(atoms.positions).all(axis=1)
    if bad.any():
        raise InputError(f"{name}: the position of atom {int(bad.argmax())} is NaN or infinite")
    kept = Atoms(numbers=atoms.numbers, positions=atoms.positions, cell=atoms.cell, pbc=atoms.pbc)
    if not periodic or np.array_equal(kept.cell.array, np.eye(3)):
        kept.set_cell(None)
        kept.set_pbc(False)
    if atoms.has("masses"):
        kept.set_masses(atoms.get_masses())
    group = atoms.info.get(ASYMMETRIC_UNIT)
    if group is not None and kept.pbc.any():
        raise InputError(
            f"{name} lists only some atoms of its cell, from which the symmetry {group} "
            "generates the others: write all atoms and the group P 1, or give --no-pbc to compute "
            "these atoms without the cell"
        )
    return kept


def clean(atoms: Atoms, name: str, periodic: bool, *, velocities: bool = False) -> Atoms:
    """Return a structure with everything that a run needs; see `read_structure`."""
    kept = checked(atoms, name, periodic)
    kept.set_constraint(atoms.constraints)
    if velocities and atoms.has("momenta"):
        kept.set_momenta(atoms.get_momenta(), apply_constraint=False)
    kept.info = {key: atoms.info[key] for key in atoms.info if notes_charge_or_spin(key)}
    kept.info |= noted_charge(atoms)
    for label in LABELS:
        if label in atoms.arrays and _is_word(atoms.arrays[label]):
            kept.set_array(label, atoms.arrays[label])
    return kept


def _is_word(values: NDArray[Any]) -> bool:
    """Return True if every value of an array [N] of names or numbers is one word of text."""
    return values.ndim == 1 and all(len(str(value).split()) == 1 for value in values)
