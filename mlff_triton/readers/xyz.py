"""Frames of XYZ and extended XYZ files, as ASE reads them.

Frames with columns for the symbol, the position and other real numbers, as in nearly all files, are
parsed here in a fraction of the time. ASE parses all others, and finds what is wrong with them.
"""

from __future__ import annotations

import copy
import io
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import IO, Any

import ase.io
import numpy as np
from ase import Atoms
from ase.data import atomic_numbers
from ase.io.extxyz import (
    SPECIAL_3_3_KEYS,
    UNPROCESSED_KEYS,
    key_val_str_to_dict,
    per_config_properties,
    set_calc_and_arrays,
)

from mlff_triton.readers.lines import (
    LONGEST,
    DividingError,
    announced_count,
    announced_lines,
)

LARGE_COUNT = re.compile(rb":[^:\s]*\d_?\d_?\d")
"""A number behind a colon that may be one of more than 99 columns."""
KEY, WORD = r"[\w:.-]+", r"[\w:.+-]+"
PLAIN = re.compile(rf'(?:{KEY}=(?:"[^"\\]+"|{WORD})(?:\s+|$))+', re.ASCII)
"""A comment of pairs without anything that ASE takes for a quote within a word, or an escape."""
PAIR = re.compile(
    rf'(({KEY})=(?:"[^"\\]+"|([+-]?\d{{1,18}}(?:\.\d*(?:[eE][+-]?\d+)?)?)(?!\S)|{WORD}))', re.ASCII
)
"""A pair of such a comment, its key, and the number if it is one."""
REAL = re.compile(r"species:S:1:pos:R:3((?::[a-z_]+:R:[1-9])*)")
"""Columns that are parsed here."""
SPECIAL = {"species", "pos", "symbols", "positions", "numbers", "initial_charges", "move_mask"}
"""Names of further columns that ASE takes for parts of the structure."""
RENAMED = {"charge": "charges"}
CELL_NAMES = ("lattice", "cell")
CELL_SIZES = (3, 6, 9)
"""Numbers of values of a cell, as lengths, lengths and angles, or vectors."""


def split(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the text of each frame: a line with the number of atoms, a comment, and the atoms."""
    number = 0
    while head := file.readline(LONGEST):
        if not head.strip():
            if not file.read(LONGEST).strip():  # blank lines at the end
                return
            raise DividingError(f"frame {number} begins with a blank line")
        count = announced_count(head, number)
        comment = file.readline(LONGEST)
        atoms = announced_lines(file, count, number)
        if not comment.endswith(b"\n") and count:
            raise DividingError(f"frame {number} lacks its comment")
        yield b"".join([head, comment, *atoms])
        number += 1


def parse(text: bytes) -> Atoms:
    """Return the structure of a frame."""
    (atoms,) = parse_many([text])
    return atoms


def parse_many(texts: list[bytes]) -> list[Atoms]:
    """Return the structures of frames; ASE parses several frames faster together."""
    images = [_parsed(text) for text in texts]
    others = [text for text, image in zip(texts, images, strict=True) if image is None]
    read = iter(_parsed_by_ase(others) if others else ())
    whole = [next(read) if image is None else image for image in images]
    for atoms in whole:
        _refuse_other_cell(atoms)
    return whole


def _refuse_other_cell(atoms: Atoms) -> None:
    """Refuse a cell that is not read, because its name is not Lattice."""
    if atoms.cell.any():
        return
    for key, value in atoms.info.items():
        if str(key).lower() in CELL_NAMES and np.size(value) in CELL_SIZES:
            raise ValueError(f"its cell is named {key}, and would be ignored: name it Lattice")


def _parsed_by_ase(texts: list[bytes]) -> list[Atoms]:
    for text in texts:
        _check_columns(text)
    whole = io.StringIO(b"".join(texts).decode())
    images: list[Atoms] = list(ase.io.read(whole, ":", format="extxyz"))
    if len(images) != len(texts):
        raise ValueError("frames overlap")
    return images


def _parsed(text: bytes) -> Atoms | None:
    """Return the structure of a frame; None if only ASE can tell what it is."""
    try:
        count, comment, rows = text.decode().split("\n", 2)
        info = _information(comment.strip())
        columns = _columns(info.pop("Properties", "species:S:1:pos:R:3"))
        words = [line.split() for line in rows.removesuffix("\n").split("\n")]
        numbers = [atomic_numbers[row[0].capitalize()] for row in words]
        widths = {len(row) for row in words}
        if len(words) != int(count) or widths != {4 + sum(columns.values())}:
            return None
        values = np.array([float(word) for row in words for word in row[1:]])
    except Exception:  # noqa: BLE001 - of any kind, as ASE finds again
        return None
    return _structure(numbers, values.reshape(len(numbers), -1), info, columns)


def _structure(
    numbers: list[int], values: np.ndarray, info: dict[str, Any], columns: dict[str, int]
) -> Atoms:
    """Return the structure of a parsed frame."""
    cell = info.pop("Lattice", None)
    pbc = info.pop("pbc", None if cell is None else [True, True, True])
    cell = None if cell is None else cell.T
    atoms = Atoms(numbers=numbers, positions=values[:, :3], cell=cell, pbc=pbc, info=info)
    arrays, start = {}, 3
    for name, width in columns.items():
        array = values[:, start : start + width]
        arrays[RENAMED.get(name, name)] = array[:, 0] if width == 1 else array
        start += width
    if arrays or not info.keys().isdisjoint(per_config_properties):
        set_calc_and_arrays(atoms, arrays)
    return atoms


def _information(comment: str) -> dict[str, Any]:
    """Return the values of a comment. Pairs are independent, and often repeat in other frames."""
    if not PLAIN.fullmatch(comment):
        return dict(key_val_str_to_dict(comment)) if comment else {}
    found: dict[str, Any] = {}
    for pair, key, number in PAIR.findall(comment):
        if number and key not in SPECIAL_3_3_KEYS and key.lower() not in UNPROCESSED_KEYS:
            is_whole = number.lstrip("+-").isdigit()
            found[key] = np.int64(number) if is_whole else np.float64(number)
        else:
            name, value = _parsed_pair(pair)
            found[name] = value if isinstance(value, str) else copy.deepcopy(value)
    return found


@lru_cache(maxsize=256)
def _parsed_pair(pair: str) -> tuple[str, Any]:
    ((name, value),) = key_val_str_to_dict(pair).items()
    return name, value


@lru_cache(maxsize=64)
def _columns(properties: str) -> dict[str, int]:
    """Return the width of each column after the position, or raise `ValueError`."""
    found = REAL.fullmatch(properties)
    if found is None:
        raise ValueError(properties)
    words = found[1].split(":")
    names, widths = words[1::3], words[3::3]
    if len(set(names)) < len(names) or not SPECIAL.isdisjoint(names):
        raise ValueError(properties)
    return dict(zip(names, map(int, widths), strict=True))


def _check_columns(text: bytes) -> None:
    """Refuse a comment that announces too many columns; ASE allocates memory for them."""
    first = text.find(b"\n") + 1
    last = text.find(b"\n", first)
    comment = text[first:last]
    if not LARGE_COUNT.search(comment):
        return
    columns = str(key_val_str_to_dict(comment.decode()).get("Properties", "")).split(":")[2::3]
    announced = sum(int(count) for count in columns)
    found = len(text[last + 1 :].partition(b"\n")[0].split())
    if announced > found or any(int(count) < 0 for count in columns):
        raise ValueError(f"Properties announces {announced} columns, and the atoms have {found}")
