"""Molecules of MOL2 files (Tripos)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

from ase import Atoms
from ase.data import atomic_numbers

from mlff_triton._common.charges import sum_of_charges
from mlff_triton.readers.lines import checked_size, lines_of, text_lines

SECTION = "@<TRIPOS>"
GAFF = {"cl": "Cl", "br": "Br", "f": "F", "i": "I"} | {
    first + second: first.upper()
    for first, seconds in {
        "c": "12356abcdefghpqsuvxyz",
        "h": "123456acnopswx",
        "n": "123456789abcdefhijklmnopqstuvxyz+",
        "o": "hpqsw",
        "p": "2345bcdefxy",
        "s": "246hpqsxy",
    }.items()
    for second in ("", *seconds)
}
"""Elements of Amber's atom types, in lower case. Such types do not include "si" or "se"."""


def split(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the text of each molecule."""
    lines: list[bytes] = []
    number = size = 0
    is_begun = False
    for line in lines_of(file):
        if line.startswith(b"@<TRIPOS>MOLECULE"):
            if is_begun:
                yield b"".join(lines)
                number += 1
            lines, size, is_begun = [], 0, True
        lines.append(line)
        size = checked_size(lines, size, number)
    if is_begun:
        yield b"".join(lines)


def parse(text: bytes) -> Atoms:
    """Return a molecule. Its name is its title.

    The total charge is the sum of formal charges in a section UNITY_ATOM_ATTR. Otherwise, it is the
    sum of partial charges, unless the molecule says that it has none. A sum that is not near an
    integer takes the place of the charge, which is refused later unless the user gives another.
    """
    sections = _sections(text_lines(text))
    head = sections["MOLECULE"]
    counts = head[1].split() if len(head) > 1 else []
    if not counts or not counts[0].isdigit():
        raise ValueError("the number of atoms is missing below @<TRIPOS>MOLECULE")
    rows = [line.split() for line in sections.get("ATOM", []) if line.strip()]
    if len(rows) != int(counts[0]):
        raise ValueError(f"{len(rows)} atoms are listed, and {counts[0]} announced")
    if any(len(row) < 6 for row in rows):
        raise ValueError("an atom lacks its position or its type")
    numbers = [_element(row[5], k) for k, row in enumerate(rows)]
    positions = [[float(value) for value in row[2:5]] for row in rows]
    atoms = Atoms(numbers, positions)
    if head[0].strip():
        atoms.info["title"] = head[0].strip()
    charge = _charge(sections, rows)
    if charge:
        atoms.info["charge"] = charge
    return atoms


def _sections(lines: list[str]) -> dict[str, list[str]]:
    """Return the lines of each section, without comments; a backslash continues a line."""
    sections: dict[str, list[str]] = {}
    current: list[str] = []
    rest = ""
    for line in lines:
        if line.startswith(SECTION):
            current = sections.setdefault(line[len(SECTION) :].strip(), [])
        elif line.rstrip().endswith("\\"):
            rest += line.rstrip()[:-1]
        elif not line.startswith("#"):
            current.append(rest + line)
            rest = ""
    return sections


def _element(kind: str, atom: int) -> int:
    """Return the atomic number for an atom type of SYBYL, such as C.ar, or of GAFF, such as ca."""
    symbol = kind.partition(".")[0]
    symbol = GAFF.get(symbol, symbol)
    if atomic_numbers.get(symbol, 0) == 0:
        raise ValueError(f"the type {kind!r} of atom {atom} is not one of SYBYL with an element")
    return int(atomic_numbers[symbol])


def _charge(sections: dict[str, list[str]], rows: list[list[str]]) -> int | str:
    """Return the total charge, or words for a sum of partial charges far from any integer."""
    attributes = sections.get("UNITY_ATOM_ATTR", [])
    formal = [line.split() for line in attributes if line.split()[:1] == ["charge"]]
    if formal:
        return sum(int(words[1]) for words in formal)
    kind = [line.strip().upper() for line in sections["MOLECULE"][3:4]]
    if kind == ["NO_CHARGES"]:
        return 0
    return sum_of_charges(float(row[8]) for row in rows if len(row) > 8)
