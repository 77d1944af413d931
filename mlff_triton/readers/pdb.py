"""Models of PDB files, with the formal charges of their atoms."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import IO

from ase import Atoms
from ase.data import atomic_numbers

from mlff_triton.readers.ase_text import structure_of
from mlff_triton.readers.lines import checked_size, lines_of

ATOMS = (b"ATOM", b"HETATM")
OF_ALL_MODELS = (b"CRYST1", b"ORIGX1", b"ORIGX2", b"ORIGX3")
CHARGE = re.compile(r"(?:(\d)([+-])|([+-])(\d))")


def split(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the atoms of each model, with the cell that stands before them or all models.

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
            is_model = True
        elif kind.startswith(b"END"):
            if lines or is_model:
                yield b"".join([*shared.values(), *lines])
                number += 1
            lines, size, is_model = [], 0, False
    if lines or is_model:
        yield b"".join([*shared.values(), *lines])


def parse(text: bytes) -> Atoms:
    """Return the structure of a model, whose charge is the sum of columns 79 and 80."""
    atoms = structure_of(text, "proteindatabank")
    charge = _charge(text.decode(errors="replace"))
    if charge is not None:
        atoms.info["charge"] = charge
    return atoms


def _charge(text: str) -> int | str | None:
    """Return the sum of formal charges, None if there are none, or the text that is not one.

    In old files, columns 73 to 80 name the file, and no element stands in columns 77 and 78.
    """
    total, is_given, atom = 0, False, 0
    for line in text.splitlines():
        if not line.startswith(("ATOM", "HETATM")):
            continue
        given = line[78:80].strip()
        if given and line[76:78].strip().capitalize() in atomic_numbers:
            match = CHARGE.fullmatch(given)
            if not match and given != "0":
                return f"{given} in columns 79-80 of atom {atom}"
            if match:
                number, sign = match[1] or match[4], match[2] or match[3]
                total, is_given = total + int(sign + number), True
        atom += 1
    return total if is_given else None
