"""Structures of GEN files (DFTB+); a file may have several."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

from ase import Atoms

from mlff_triton.readers.ase_text import structure_of
from mlff_triton.readers.lines import (
    LONGEST,
    DividingError,
    announced_count,
    announced_lines,
)

CELL_LINES = 4  # the origin and three vectors, unless the structure is a cluster


def split(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the text of each structure."""
    number = 0
    while head := file.readline(LONGEST):
        if not head.strip():
            continue
        words = head.split()
        if len(words) != 2:
            raise DividingError(f"frame {number} does not begin with a number and C, S or F")
        count = announced_count(words[0], number)
        if words[1].upper() != b"C":
            count += CELL_LINES
        symbols = file.readline(LONGEST)
        yield b"".join([head, symbols, *announced_lines(file, count, number)])
        number += 1


def parse(text: bytes) -> Atoms:
    """Return one structure."""
    return structure_of(text, "gen")
