"""Frames of structure files of any format, one after another."""

from __future__ import annotations

import re
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import ase.io
from ase import Atoms
from ase.db import connect
from ase.io.formats import UnknownFileTypeError, filetype, open_with_compression

from mlff_triton._common.files import find_file
from mlff_triton._common.text import first_line, printable
from mlff_triton.errors import InputError
from mlff_triton.readers.announced import check_announced, check_size
from mlff_triton.readers.elements import element, elements_of_names, masses_of
from mlff_triton.readers.formats import Format, find_format
from mlff_triton.readers.lines import DividingError
from mlff_triton.readers.pdb import ASYMMETRIC_UNIT

TEXTS = 256  # of one format that are parsed together
SYMMETRY = {
    "dmol-car": re.compile(r"PBC(?:\s+[\d.]+){6}\s*\((?!P\s*1\s*\))(.*)\)"),
    "res": re.compile(r"((?:SYMM|LATT)\b(?!\s+-1\s*$).*)"),
}
"""Lines with operations or groups other than P 1, by ASE's names of formats."""
FRAME = re.compile(r"(.+)@(-?\d+)", re.DOTALL)


class FrameName(NamedTuple):
    """A file and the number of a frame, as in ``traj.xyz@3``; None if no frame is named."""

    path: Path
    frame: int | None


class Frame(NamedTuple):
    """One frame of a file.

    Attributes
    ----------
    structure : Atoms or str
        The structure, or why it cannot be read.
    number : int
        Number of the frame, from 0.
    total : int
        Number of all frames of the file.
    """

    structure: Atoms | str
    number: int
    total: int


def name_of_frame(source: str | Path) -> FrameName:
    """Split ``traj.xyz@3`` into file and frame, unless a file has the whole name."""
    match = FRAME.fullmatch(str(source))
    if match is None or find_file(source) is not None:
        return FrameName(Path(source), None)
    return FrameName(Path(match[1]), int(match[2]))


def texts_of(path: Path, kind: Format) -> Iterator[bytes]:
    """Yield the texts of all records of a file; the file may be compressed.

    Raises
    ------
    InputError
        If the file cannot be read, or its records cannot be told apart.
    """
    name, count = printable(path), 0
    try:
        with open_with_compression(str(path), "rb") as file:
            for text in kind.split(file):
                yield text
                count += 1
    except InputError:
        raise
    except DividingError as error:
        what = "is damaged or truncated" if count else "cannot be read as a structure"
        raise InputError(f"{name} {what}: {error}") from error
    except (OSError, EOFError, ValueError) as error:
        raise InputError(f"{name} cannot be read: {first_line(error)}") from error


def frames_of(path: Path, *, with_results: bool = False) -> Iterator[Atoms | str]:
    """Yield the structure of each frame of a file, or why it cannot be read.

    Structures of formats that ASE reads have results only if these are wanted.

    Raises
    ------
    InputError
        If frames cannot be told apart.
    """
    check_size(path)
    kind = find_format(path)
    if kind is None:
        yield from frames_with_results(path) if with_results else ase_frames(path)
        return
    texts = texts_of(path, kind)
    while some := list(islice(texts, TEXTS)):
        yield from kind.structures(some)


def read_frame(path: Path, wanted: int | None = None) -> Frame:
    """Read one frame of a file.

    Parameters
    ----------
    path : Path
        The file.
    wanted : int, optional
        Number of the frame; negative ones count from the end. By default, the last frame of a
        trajectory, and the first record of PDB, CIF, SDF and MOL2 files.

    Raises
    ------
    InputError
        If there is no such frame, or frames cannot be told apart.
    """
    check_size(path)
    kind = find_format(path)
    if wanted is None:
        wanted = -1 if kind is None or kind.is_trajectory else 0
    frames: Iterator[Any] = ase_frames(path) if kind is None else texts_of(path, kind)
    kept: deque[Any] = deque(maxlen=1 if wanted >= 0 else -wanted)
    count = 0
    for count, frame in enumerate(frames, 1):
        if wanted < 0 or count <= wanted + 1:
            kept.append(frame)
    if count == 0:
        raise InputError(f"{printable(path)} contains no atoms")
    if not -count <= wanted < count:
        raise InputError(
            f"{printable(path)} has no frame {wanted}: its {count} frames are counted from 0"
        )
    (structure,) = (kept[0],) if kind is None else kind.structures([kept[0]])
    return Frame(structure, wanted % count, count)


def ase_frames(path: Path) -> Iterator[Atoms]:
    """Yield the frames of a file that ASE reads, of any size, without their results.

    Raises
    ------
    InputError
        If a frame cannot be read: ASE cannot go on behind it.
    """
    for atoms in frames_with_results(path):
        atoms.calc = None
        yield atoms


def frames_with_results(path: Path) -> Iterator[Atoms]:
    """Yield the frames of a file that ASE reads, with the results that it holds.

    Raises
    ------
    InputError
        If a frame cannot be read: ASE cannot go on behind it.
    """
    with reader_errors(path), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about fields that are not used here
        name = filetype(str(path))
        check_announced(path, name)
        yield from SPECIAL[name](path) if name in SPECIAL else _any_format(path, name)


def _any_format(path: Path, name: str, **options: bool) -> Iterator[Any]:
    return ase.io.iread(path, ":", format=name, do_not_split_by_at_sign=True, **options)


def _gaussian_input(path: Path) -> Iterator[Atoms]:
    """Yield the structure of a Gaussian input, with its charge and multiplicity."""
    for atoms in _any_format(path, "gaussian-in", attach_calculator=True):
        given = atoms.calc.parameters
        unit = str(given.get("units", "")).lower()
        if "au" in unit or "bohr" in unit:
            raise ValueError("its positions are in Bohr: convert them to Å")
        isotopes = [int(isotope or 0) for isotope in given.get("isolist") or ()]
        if any(isotopes):
            atoms.set_masses(masses_of(atoms.numbers, isotopes))
        names = {"charge": "charge", "mult": "multiplicity"}
        atoms.info |= {names[key]: given[key] for key in names if given.get(key) is not None}
        yield atoms


def _database(path: Path, kind: str) -> Iterator[Atoms]:
    """Yield the structures of a database of ASE, with their key-value pairs."""
    with connect(path, type=kind, serial=True) as database:
        for row in database.select():
            atoms = row.toatoms()
            atoms.info = row.key_value_pairs | atoms.info
            yield atoms


def _gromos(path: Path) -> Iterator[Atoms]:
    """Yield the structure of a G96 file, whose elements follow from names of atoms and residues."""
    for atoms in _any_format(path, "gromos"):
        rows = _g96_rows(path)
        names = [row[2] for row in rows]
        symbols = elements_of_names(names, [(row[0], row[1]) for row in rows])
        atoms.numbers[:] = [element(symbol, atom) for atom, symbol in enumerate(symbols)]
        yield atoms


def _g96_rows(path: Path) -> list[list[str]]:
    """Return the words of all lines of atoms."""
    rows: list[list[str]] = []
    is_inside = False
    with open_with_compression(str(path), "rt") as file:
        for line in file:
            is_inside = is_inside and "END" not in line
            if is_inside:
                rows.append(line.split())
            is_inside = is_inside or "POSITION" in line
    return rows


def _lammps_dump(path: Path) -> Iterator[Atoms]:
    """Yield the frames of a dump of LAMMPS, unless elements or the unit of length are unknown."""
    with open_with_compression(str(path), "rt") as file:
        for line in file:
            if line.startswith("ITEM: UNITS"):
                unit = next(file, "").strip()
                if unit not in ("metal", "real"):
                    raise ValueError(f"its units are {unit!r}: write it in units metal or real")
            if line.startswith("ITEM: ATOMS"):
                if {"element", "mass"}.isdisjoint(line.split()):
                    raise ValueError(
                        "it has types of atoms, but no elements: write them by dump_modify element"
                    )
                break
    yield from _any_format(path, "lammps-dump-text")


def _lammps_data(path: Path) -> Iterator[Atoms]:
    """Yield the structure of a data file of LAMMPS, unless it has types of atoms without masses."""
    with open_with_compression(str(path), "rt") as file:
        if not any(line.split()[:1] == ["Masses"] for line in file):
            raise ValueError("it has types of atoms, but no elements: add the section Masses")
    yield from _any_format(path, "lammps-data")


def _with_group(path: Path, kind: str) -> Iterator[Atoms]:
    """Yield structures with the symmetry that generates further atoms of the cell in ``info``."""
    with open_with_compression(str(path), "rt") as file:
        group = next((match[1] for match in map(SYMMETRY[kind].match, file) if match), None)
    for atoms in _any_format(path, kind):
        if group is not None:
            atoms.info[ASYMMETRIC_UNIT] = group
        yield atoms


def _eon(path: Path) -> Iterator[Atoms]:
    """Yield the structures of a file of EON, which are periodic."""
    for atoms in _any_format(path, "eon"):
        atoms.pbc = True
        yield atoms


SPECIAL: dict[str, Callable[[Path], Iterator[Atoms]]] = {
    "gaussian-in": _gaussian_input,
    "db": partial(_database, kind="db"),
    "json": partial(_database, kind="json"),
    "dmol-car": partial(_with_group, kind="dmol-car"),
    "eon": _eon,
    "gromos": _gromos,
    "lammps-dump-text": _lammps_dump,
    "lammps-data": _lammps_data,
    "res": partial(_with_group, kind="res"),
}
"""Readers of formats of which `ase.io.read` drops charges, keys, isotopes, units or symmetry, or
guesses elements."""


@contextmanager
def reader_errors(path: Path) -> Iterator[None]:
    """Turn exceptions of other libraries into an `InputError` that names the file."""
    try:
        yield
    except InputError:
        raise
    except UnknownFileTypeError as error:
        raise InputError(
            f"{printable(path)} has a format that is unknown, by its name and its content: convert "
            "it to extended XYZ, or to another format that ASE reads"
        ) from error
    except Exception as error:
        raise InputError(
            f"{printable(path)} cannot be read as a structure: {first_line(error)}"
        ) from error
