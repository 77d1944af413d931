"""Reading of structures from files, or by the names of shipped ones."""

from __future__ import annotations

import warnings
from importlib import resources
from itertools import takewhile
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
from ase import Atoms
from ase.io.formats import filetype
from numpy.typing import NDArray

from mlff_triton._common.files import find_file
from mlff_triton._common.text import first_line, printable
from mlff_triton.dynamics.trajectories.frame import LABELS
from mlff_triton.errors import InputError

SHIPPED = {"alanine-dipeptide-water": "alanine_dipeptide_water.xyz"}
MOST_BYTES = 4 * 10**9  # of a file, all of which ASE reads
LONGEST = 200  # bytes of a line that may announce numbers of atoms


def read_structure(source: str | Path, *, periodic: bool = True) -> Atoms:
    """Read a structure from a file that ASE supports, or a shipped one.

    The first model of a PDB file is read, or the last frame of any other trajectory. Only elements,
    positions, cell, masses, total charge, and names of atoms and residues are kept: each run draws
    new velocities.

    Parameters
    ----------
    source : str or path
        Name of a shipped structure (``"alanine-dipeptide-water"``) or a file.
    periodic : bool, optional
        If False, drop the cell, as of a crystal whose molecule is simulated alone.

    Returns
    -------
    Atoms
        The structure, without calculator. A PDB cell of 1 x 1 x 1 Å, by which the format says
        "none", is dropped.

    Raises
    ------
    InputError
        If the file is missing, unreadable or empty, has positions that are not finite, or has
        constraints, which the integrators do not support.

    Examples
    --------
    >>> len(read_structure("alanine-dipeptide-water"))
    166
    """
    name = str(source)
    if name in SHIPPED:
        shipped = resources.files("mlff_triton") / "structures" / SHIPPED[name]
        with resources.as_file(shipped) as path:
            return _clean(_read(path), name, periodic)
    return _clean(_read(Path(name)), name, periodic)


def read_images(source: str | Path, index: str = ":") -> list[Atoms]:
    """Read frames of a file with ASE.

    Parameters
    ----------
    source : str or path
        The file.
    index : str
        ASE's notation of the frames; all by default.

    Returns
    -------
    list of Atoms
        As ASE returns them.

    Raises
    ------
    InputError
        If the file is missing, too large, or not one that ASE reads.
    """
    path, name = find_file(source), printable(source)
    if path is None:
        raise InputError(
            f"there is no structure {name!r}: give a file, or one of {', '.join(SHIPPED)}"
        )
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise InputError(
            f"{name} has {size / 1e9:.0f} GB, more than {MOST_BYTES / 1e9:.0f}: extract some frames"
        )
    try:
        announced = _announced(path)
        if announced > size:  # for which ASE would allocate memory
            raise ValueError(f"it announces {announced} atoms")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about fields that are not used here
            images = ase.io.read(path, index=index)
    except Exception as error:
        raise InputError(f"{name} cannot be read as a structure: {first_line(error)}") from error
    return images if isinstance(images, list) else [images]


def _announced(path: Path) -> int:
    """Return the number of atoms that the head of an XYZ or VASP file announces, or 0."""
    with path.open("rb") as file:
        rows = [file.readline(LONGEST).split() for _ in range(7)]
    if filetype(str(path)) in ("vasp", "vasp-xdatcar"):  # numbers per element, below their names
        return max(sum(map(int, takewhile(bytes.isdigit, row))) for row in rows[5:])
    return int(rows[0][0]) if len(rows[0]) == 1 and rows[0][0].isdigit() else 0


def _read(path: Path) -> Atoms:
    """Read the frame to simulate: the first of a PDB file, and otherwise the last."""
    is_pdb = path.suffix.lower() in (".pdb", ".ent")
    images = read_images(path, ":" if is_pdb else "-1:")
    return next((atoms for atoms in images if len(atoms)), Atoms())


def checked(atoms: Atoms, name: str, periodic: bool) -> Atoms:
    """Return elements, positions and cell of a structure that has been read.

    Raises
    ------
    InputError
        If there are no atoms, or positions are not finite.
    """
    if len(atoms) == 0:
        raise InputError(f"{name} contains no atoms")
    bad = ~np.isfinite(atoms.positions).all(axis=1)
    if bad.any():
        raise InputError(f"{name}: the position of atom {int(bad.argmax())} is NaN or infinite")
    kept = Atoms(atoms.numbers, atoms.positions, cell=atoms.cell, pbc=atoms.pbc)
    if not periodic or np.array_equal(kept.cell.array, np.eye(3)):
        kept.set_cell(None)
        kept.set_pbc(False)
    return kept


def _clean(atoms: Atoms, name: str, periodic: bool) -> Atoms:
    kept = checked(atoms, name, periodic)
    if atoms.constraints:
        raise InputError(f"{name} has constraints, which are not supported: remove them")
    if atoms.has("masses"):
        kept.set_masses(atoms.get_masses())
    if "charge" in atoms.info:
        kept.info["charge"] = atoms.info["charge"]
    for label in LABELS:
        if label in atoms.arrays and _is_word(atoms.arrays[label]):
            kept.set_array(label, atoms.arrays[label])
    return kept


def _is_word(values: NDArray[Any]) -> bool:
    """Return True if every value of an array [N] of names or numbers is one word of text."""
    return values.ndim == 1 and all(len(str(value).split()) == 1 for value in values)
