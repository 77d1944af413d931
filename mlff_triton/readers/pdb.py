"""Models of PDB files, with the formal charges of their atoms."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import IO

from ase import Atoms
from ase.data import atomic_numbers

from mlff_triton.readers.ase_text import structure_of
from mlff_triton.readers.elements import HYDROGEN, element_of_name, masses_of
from mlff_triton.readers.lines import checked_size, lines_of

ASYMMETRIC_UNIT = "asymmetric_unit_of"
"""Key of the space group that generates all atoms of a cell from those of a file."""
ATOMS = (b"ATOM", b"HETATM")
OF_ALL_MODELS = (b"CRYST1", b"ORIGX1", b"ORIGX2", b"ORIGX3")
GROUP = slice(54, 66)  # of a line CRYST1
ALL_ATOMS = ("", "1", "P1")
"""Space groups of cells whose atoms are all listed, without spaces; programs that simulate write
P 1."""
CHARGE = re.compile(r"(?:(\d)([+-])|([+-])(\d))")


def split(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the atoms of each model, with the cell that precedes the model or all models.

    A model ends with ENDMDL or, in trajectories of other programs, with END.
    """
    shared: dict[bytes, bytes] = {}
    lines: list[bytes] = []
    number = size = 0
    is_model = False
    for line in lines_of(file):
        kind = line[:6].rstrip().upper()
        if kind in OF_ALL_MODELS:
            shared[kind] = line
        elif kind.startswith(ATOMS):
            lines.append(line)
            size = checked_size(lines, size, number)
        elif kind == b"MODEL":
            if lines or is_model:  # the model before it lacks its end
                yield b"".join([*shared.values(), *lines])
                number += 1
            lines, size, is_model = [], 0, True
        elif kind.startswith(b"END"):
            if lines or is_model:
                yield b"".join([*shared.values(), *lines])
                number += 1
            lines, size, is_model = [], 0, False
    if lines or is_model:
        yield b"".join([*shared.values(), *lines])


def parse(text: bytes) -> Atoms:
    """Return the structure of a model; its charge is the sum of columns 79 and 80.

    If a space group generates further atoms of the cell, it is in ``info``.

    Raises
    ------
    ValueError
        If it is damaged, or atoms have alternate positions.
    """
    lines = text.decode(errors="replace").splitlines()
    rows = [line for line in lines if line.startswith(("ATOM", "HETATM"))]
    charge = _charge(rows)
    _refuse_alternates(rows)
    symbols = [_symbol(line, atom) for atom, line in enumerate(rows)]
    named = (
        f"{line[:76]:76}{'H' if s in HYDROGEN else s:>2}"
        for line, s in zip(rows, symbols, strict=True)
    )
    others = [line for line in lines if not line.startswith(("ATOM", "HETATM"))]
    whole = "\n".join([*others, *named])
    atoms = structure_of(whole.encode(), "proteindatabank")
    isotopes = [HYDROGEN.get(symbol, 0) for symbol in symbols]
    if any(isotopes):
        atoms.set_masses(masses_of(atoms.numbers, isotopes))
    if charge is not None:
        atoms.info["charge"] = charge
    groups = [line[GROUP].strip() for line in others if line.startswith("CRYST1")]
    if groups and groups[0].replace(" ", "") not in ALL_ATOMS:
        atoms.info[ASYMMETRIC_UNIT] = groups[0]
    return atoms


def _refuse_alternates(rows: list[str]) -> None:
    """Refuse an atom that occurs in a model several times, with different letters in column 17."""
    letters: dict[tuple[str, str, str], str] = {}
    for atom, line in enumerate(rows):
        key = line[12:16], line[21:22], line[22:27]
        first = letters.setdefault(key, line[16:17])
        if first != line[16:17]:
            name = f"{line[12:16].strip()} of {line[17:20].strip()} {line[22:27].strip()}"
            raise ValueError(
                f"atom {atom} ({name}) has alternate positions, {first!r} and {line[16]!r} in "
                "column 17: keep one of them"
            )


def _symbol(line: str, atom: int) -> str:
    """Return the element of an atom, from columns 77 and 78 or, in many files, from its name.

    A name begins in column 13 if the element has two letters, and otherwise in column 14, if the
    name has fewer than four letters.
    """
    given, name = line[76:78].strip().capitalize(), line[12:16]
    if given in HYDROGEN or atomic_numbers.get(given, 0):
        return given
    is_one_letter = name[0] == " " or len(name.strip()) == 4
    return element_of_name(
        name, line[17:20], atom, "write it in columns 77-78", is_one_letter=is_one_letter
    )


def _charge(rows: list[str]) -> int | str | None:
    """Return the sum of formal charges, None if there are none, or the text that is not one.

    In old files, columns 73 to 80 name the file, and columns 77 and 78 hold no element.
    """
    total, is_given = 0, False
    for atom, line in enumerate(rows):
        given = line[78:80].strip()
        if given and line[76:78].strip().capitalize() in atomic_numbers:
            match = CHARGE.fullmatch(given)
            if not match and given != "0":
                return f"{given} in columns 79-80 of atom {atom}"
            if match:
                number, sign = match[1] or match[4], match[2] or match[3]
                total, is_given = total + int(sign + number), True
    return total if is_given else None
