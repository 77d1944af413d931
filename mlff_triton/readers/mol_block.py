"""Blocks of atoms in MOL and SDF files, V2000 and V3000."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ase.data import atomic_masses

from mlff_triton.readers.elements import HYDROGEN, element

END = "M  END"
V30 = "M  V30 "
ORDERS = {4: 1.5}  # of bonds by their types
CHARGE_CODES = {0: 0, 1: 3, 2: 2, 3: 1, 4: 0, 5: -1, 6: -2, 7: -3}


class Block(NamedTuple):
    """Atoms of a molecule.

    Attributes
    ----------
    numbers : list of int
        Atomic numbers.
    positions : list of [x, y, z]
        Å.
    charges : list of int
        Formal charges.
    isotopes : list of int
        Mass numbers; 0 for the natural mixture.
    bonds : iterable of (int, int, float)
        Two atoms and the order of their bond, 1.5 if it is aromatic. Can be iterated once.
    """

    numbers: list[int]
    positions: list[list[float]]
    charges: list[int]
    isotopes: list[int]
    bonds: Iterable[tuple[int, int, float]]


def parse_block(lines: list[str]) -> Block:
    """Return the atoms of a block whose last line is ``M  END``.

    Raises
    ------
    ValueError
        If it is damaged, or holds anything other than atoms of elements.
    """
    if len(lines) < 5:
        raise ValueError("the record is empty: it lacks its three header lines and its counts")
    counts = lines[3]
    if "V3000" in counts.upper():
        return _v3000(lines[4:])
    if "V2000" not in counts.upper() and counts[33:39].strip():
        raise ValueError(f"the version {counts[33:39].strip()!r} is neither V2000 nor V3000")
    return _v2000(counts, lines[4:-1])


def _v2000(counts: str, lines: list[str]) -> Block:
    n_atoms, n_bonds = _count(counts[0:3]), _count(counts[3:6])
    if len(lines) < n_atoms + n_bonds:
        raise ValueError(
            f"{n_atoms} atoms and {n_bonds} bonds are announced, and {len(lines)} lines are left"
        )
    bonds = lines[n_atoms : n_atoms + n_bonds]
    block = Block([], [], [], [], _bonds([line[0:3], line[3:6], line[6:9]] for line in bonds))
    for k, line in enumerate(lines[:n_atoms]):
        _add_atom(block, line, k)
    properties = lines[n_atoms + n_bonds :]
    charges = dict(_pairs(properties, "CHG", n_atoms))
    if charges or any(line.split()[:2] in (["M", "CHG"], ["M", "RAD"]) for line in properties):
        block.charges[:] = [charges.get(k, 0) for k in range(n_atoms)]
    for k, isotope in _pairs(properties, "ISO", n_atoms):
        block.isotopes[k] = isotope
    return block


def _bonds(rows: Iterable[list[str]]) -> Iterator[tuple[int, int, float]]:
    """Yield bonds from rows of two atoms and a type; damaged rows are skipped."""
    for row in rows:
        if all(word.strip().isdigit() for word in row):
            first, second, kind = map(int, row)
            yield first - 1, second - 1, ORDERS.get(kind, float(kind))


def _count(text: str) -> int:
    if not text.strip().isdigit():
        raise ValueError(f"the counts line begins with {text!r} instead of a number")
    return int(text)


def _add_atom(block: Block, line: str, atom: int) -> None:
    """Add the atom of a V2000 line, whose columns may lack spaces between them."""
    words = line.split()
    try:
        position = [float(word) for word in words[:3]]
        symbol, difference, code = words[3], *[*words[4:6], "0", "0"][:2]
        if symbol[:1].isdigit():
            raise ValueError
    except (ValueError, IndexError):
        words = [line[0:10], line[10:20], line[20:30]]
        position = [_float(word, atom) for word in words]
        symbol, difference, code = line[30:34].strip(), line[34:36], line[36:39]
    else:
        if line[30:34].strip() == symbol:
            difference, code = line[34:36], line[36:39]
    block.numbers.append(element(symbol, atom))
    block.positions.append(position)
    block.charges.append(_formal(code, atom))
    block.isotopes.append(_isotope(symbol, block.numbers[-1], difference))


def _float(text: str, atom: int) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"the position of atom {atom} holds {text.strip()!r}") from None


def _formal(code: str, atom: int) -> int:
    """Return the formal charge of a code in the atom's line."""
    try:
        return CHARGE_CODES[int(code.strip() or 0)]
    except (ValueError, KeyError):
        raise ValueError(f"the charge of atom {atom} holds {code.strip()!r}, not 0 to 7") from None


def _isotope(symbol: str, number: int, difference: str) -> int:
    text = difference.strip()
    if symbol in HYDROGEN:
        return HYDROGEN[symbol]
    if text.lstrip("+-").isdigit() and int(text):
        return round(float(atomic_masses[number])) + int(text)
    return 0


def _pairs(lines: list[str], name: str, n_atoms: int) -> Iterator[tuple[int, int]]:
    """Yield atoms, from 0, and values of all lines of a property, such as CHG in ``M  CHG``."""
    for line in lines:
        words = line.split()
        if words[:2] != ["M", name]:
            continue
        try:
            count, *numbers = map(int, words[2:])
        except ValueError:
            count, numbers = -1, []
        atoms, values = numbers[::2], numbers[1::2]
        is_complete = len(atoms) == len(values) == count
        if not is_complete or not all(1 <= atom <= n_atoms for atom in atoms):
            raise ValueError(f"the line {line.strip()!r} is damaged")
        yield from ((atom - 1, value) for atom, value in zip(atoms, values, strict=True))


def _v3000(lines: list[str]) -> Block:
    rows = list(_joined(lines))
    try:
        begin, end = rows.index(["BEGIN", "ATOM"]), rows.index(["END", "ATOM"])
        counts = next(row for row in rows if row[:1] == ["COUNTS"])
        n_atoms = int(counts[1])
    except (ValueError, IndexError, StopIteration):
        raise ValueError("the record lacks its counts or its block of atoms") from None
    atoms = rows[begin + 1 : end]
    if len(atoms) != n_atoms:
        raise ValueError(f"{len(atoms)} atoms are listed, and {n_atoms} announced")
    places = {row[0]: str(k) for k, row in enumerate(atoms, 1) if row}
    bonds = (
        [*(places.get(word, "") for word in row[2:4]), row[1]]
        for row in _section(rows, "BOND")
        if len(row) > 3
    )
    block = Block([], [], [], [], _bonds(bonds))
    for k, row in enumerate(atoms):
        if len(row) < 5:
            raise ValueError(f"the line of atom {k} is damaged")
        pairs = (word.partition("=") for word in row[5:])
        options = {name.upper(): value for name, mark, value in pairs if mark}
        block.numbers.append(element(row[1], k))
        block.positions.append([_float(word, k) for word in row[2:5]])
        block.charges.append(_option(options, "CHG", k))
        block.isotopes.append(_option(options, "MASS", k) or HYDROGEN.get(row[1], 0))
    return block


def _section(rows: list[list[str]], name: str) -> list[list[str]]:
    """Return the rows of a block, or none if there is no such block."""
    if ["BEGIN", name] not in rows or ["END", name] not in rows:
        return []
    return rows[rows.index(["BEGIN", name]) + 1 : rows.index(["END", name])]


def _option(options: dict[str, str], name: str, atom: int) -> int:
    try:
        return int(options.get(name, 0))
    except ValueError:
        raise ValueError(f"{name} of atom {atom} is {options[name]!r}, not an integer") from None


def _joined(lines: list[str]) -> Iterator[list[str]]:
    """Yield the words of V3000 lines; the last character of a line may continue it on the next."""
    text = ""
    for line in lines:
        if not line.startswith(V30):
            continue
        text += line[len(V30) :].rstrip()
        if text.endswith("-"):
            text = text[:-1]
        else:
            yield text.split()
            text = ""
