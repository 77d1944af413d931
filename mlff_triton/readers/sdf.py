"""Records of SDF and MOL files: V2000 and V3000, with titles, data fields and formal charges.

The format is that of "CTfile Formats" (BIOVIA, 2020). RDKit is not used, even if it is installed:
it reads a damaged position such as ``1.361C588`` as 1.361, without an error. Tests compare
molecules of intact records with RDKit's.
"""

from __future__ import annotations

import re
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
COUNTS = re.compile(rb"[ \d]{6}.*V[23]000\s*")
CARBON = 6
HEADER = 3  # lines of a molecule before its counts
INTEGER = re.compile(r"[+-]?\d{1,9}")
FIELD = re.compile(r">.*<.+>")


def split(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the text of each record, without the separator at its end.

    MOL files that follow one another without separators are records, too.
    """
    lines: list[bytes] = []
    number = size = 0
    has_ended = False  # the molecule, and no data field has begun
    for line in lines_of(file):
        if line.startswith(SEPARATOR):
            yield b"".join(lines)
            number += 1
            lines, size, has_ended = [], 0, False
            continue
        if line.startswith(b"M  END"):
            has_ended = True
        elif has_ended and line.startswith(b">"):
            has_ended = False
        elif has_ended and COUNTS.fullmatch(line):
            yield b"".join(lines[:-HEADER])
            number += 1
            lines, has_ended = lines[-HEADER:], False
            size = sum(map(len, lines))
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
    if any(line.rstrip() == END for line in lines[end + 1 :]):
        raise ValueError("the record holds several molecules: a line $$$$ is missing")
    block = parse_block(lines[: end + 1])
    _refuse_drawing(block, lines[1])
    atoms = Atoms(block.numbers, np.array(block.positions).reshape(-1, 3))
    if any(block.isotopes):
        atoms.set_masses(masses_of(block.numbers, block.isotopes))
    atoms.info.update(_info(lines[0].strip(), _fields(lines[end + 1 :]), block.charges))
    return atoms


def _refuse_drawing(block: Block, header: str) -> None:
    """Refuse a drawing in a plane, whose bonds have no lengths in Å.

    Some programs do not call it one. A carbon atom in the plane with unlisted hydrogen atoms or
    with four neighbors then distinguishes it from a planar molecule.
    """
    kind = header[DIMENSION].upper()
    if not block.numbers or any(z for _, _, z in block.positions):
        return
    if kind == "2D" or (kind != "3D" and _has_flat_carbon(block)):
        raise ValueError("the record is a drawing in 2D: make positions in 3D first")


def _has_flat_carbon(block: Block) -> bool:
    neighbors, orders = [0] * len(block.numbers), [0.0] * len(block.numbers)
    for first, second, order in block.bonds:
        if max(first, second) < len(neighbors):
            for atom in (first, second):
                neighbors[atom] += 1
                orders[atom] += order
    return any(
        number == CARBON and not charge and (neighbors[k] > 3 or 0 < orders[k] < 4)
        for k, (number, charge) in enumerate(zip(block.numbers, block.charges, strict=True))
    )


def _info(title: str, fields: list[tuple[str, str]], charges: list[int]) -> dict[str, Any]:
    """Return title, data fields and charge under different names.

    Formal charges count. Without them, a field named "charge" counts.
    """
    info: dict[str, Any] = {TITLE: title} if title else {}
    is_formal = any(charges)
    charge: int | float | str | None = sum(charges) if is_formal else None
    for name, text in fields:
        key, value = name, _number(text)
        if name == CHARGE:
            value = int(text) if INTEGER.fullmatch(text) else value
            charge = value if charge is None else charge
            if value == charge:
                continue
            key = "total_charge"  # causes a warning, because it contradicts the other one
        while key in info:
            key += "_"
        info[key] = value
    if charge is not None and (charge or not is_formal):
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


def _fields(lines: list[str]) -> list[tuple[str, str]]:
    """Return names and values of the data fields behind the block of atoms.

    A blank line ends a field, or else the head of the next one.
    """
    fields: list[tuple[str, list[str]]] = []
    is_open = False
    for line in lines:
        if line.startswith(">") and (not is_open or FIELD.match(line)):
            fields.append((_name(line[1:]), []))
            is_open = True
        elif not line.strip():
            is_open = False
        elif is_open:
            fields[-1][1].append(line.strip())
    return [(name, "\n".join(values)) for name, values in fields]


def _name(head: str) -> str:
    begin, end = head.find("<"), head.rfind(">")
    return (head[begin + 1 : end] if 0 <= begin < end else head).strip()
