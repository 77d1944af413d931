"""Records of SDF and MOL files: V2000 and V3000, with titles, data fields and formal charges.

The format is that of "CTfile Formats" (BIOVIA, 2020). RDKit does not read it here, installed or
not: of a damaged position such as ``1.361C588`` it takes 1.361, without an error. Tests compare
molecules of intact records with RDKit's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any

import numpy as np
from ase import Atoms

from mlff_triton.readers.elements import masses_of
from mlff_triton.readers.lines import checked_size, lines_of, text_lines
from mlff_triton.readers.mol_block import END, Block, parse_block

SEPARATOR = b"$$$$"
DIMENSION = slice(20, 22)  # in the second line
TITLE, CHARGE = "title", "charge"


def split(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the text of each record, without the separator at its end."""
    lines: list[bytes] = []
    number = size = 0
    for line in lines_of(file):
        if line.startswith(SEPARATOR):
            yield b"".join(lines)
            number += 1
            lines, size = [], 0
        else:
            lines.append(line)
            size = checked_size(lines, size, number)
    if b"".join(lines).strip():
        yield b"".join(lines)


def parse(text: bytes) -> Atoms:
    """Return the molecule of a record.

    Its ``info`` holds the title, the data fields and, unless all formal charges are zero, the total
    charge.
    """
    lines = text_lines(text)
    end = next((k for k, line in enumerate(lines) if line.rstrip() == END), None)
    if end is None:
        raise ValueError(f"the record lacks the line {END!r}: it is damaged or truncated")
    block = parse_block(lines[: end + 1])
    _refuse_drawing(block, lines[1])
    atoms = Atoms(block.numbers, np.array(block.positions).reshape(-1, 3))
    if any(block.isotopes):
        atoms.set_masses(masses_of(block.numbers, block.isotopes))
    atoms.info.update(_info(lines[0].strip(), _fields(lines[end + 1 :]), sum(block.charges)))
    return atoms


def _refuse_drawing(block: Block, header: str) -> None:
    """Refuse a drawing in a plane, whose bonds have no lengths in Å."""
    if header[DIMENSION].upper() == "2D" and not any(z for _, _, z in block.positions):
        raise ValueError("the record is a drawing in 2D: make positions in 3D first")


def _info(title: str, fields: dict[str, str], charge: int) -> dict[str, Any]:
    """Return title, data fields and charge under different names.

    Formal charges count. Where there are none, a field named "charge" does.
    """
    info: dict[str, Any] = {TITLE: title} if title else {}
    for name, value in fields.items():
        key = name
        if key == CHARGE and charge and _number(value) != charge:
            key = "total_charge"  # is warned of, as it contradicts the formal charges
        while key in info:
            key += "_"
        info[key] = _number(value)
    if charge:
        info[CHARGE] = charge
    return info


def _number(text: str) -> int | float | str:
    """Return a number if its text is what Python would write, so that names stay as they are."""
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        if str(value) == text and np.isfinite(value):
            return value
    return text


def _fields(lines: list[str]) -> dict[str, str]:
    """Return the data fields behind the block of atoms by name."""
    fields: dict[str, str] = {}
    rows = iter(lines)
    for line in rows:
        if not line.startswith(">"):
            continue
        head = line[1:]
        begin, end = head.find("<"), head.rfind(">")
        name = head[begin + 1 : end] if 0 <= begin < end else head.strip()
        values = []
        for value in rows:
            if not value.strip():
                break
            values.append(value.strip())
        fields[name.strip()] = "\n".join(values)
    return fields
