"""Numbers of atoms announced by files; ASE allocates memory for them before reading any atom."""

from __future__ import annotations

import mmap
import re
from itertools import takewhile
from pathlib import Path

from mlff_triton._common.text import printable
from mlff_triton.errors import InputError

MOST_BYTES = 4 * 10**9  # of a file that is read as a whole
LONGEST = 200  # bytes of a line that may announce numbers of atoms
COUNTS = {
    "abinit-in": re.compile(rb"(\d+)\*"),
    "cfg": re.compile(rb"(?:Number of particles|entry_count)\s*=\s*(\d+)"),
    "cube": re.compile(rb"\A[^\n]*\n[^\n]*\n\s*-?(\d+)"),
    "lammps-data": re.compile(rb"^\s*(\d+)\s+(?:atoms|bonds|angles|dihedrals)\b", re.MULTILINE),
    "lammps-dump-text": re.compile(rb"NUMBER OF ATOMS[^\n]*\n\s*(\d+)"),
    "xsf": re.compile(rb"(?:(?:PRIM|CONV)COORD[^\n]*\n\s*|ANIMSTEPS\s+)(\d+)"),
}
"""Numbers that must be below the size of a file in bytes, by ASE's names of formats."""


def check_size(path: Path) -> None:
    """Raise `InputError` if a file is too large to be read by a command that is not `predict`."""
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise InputError(
            f"{printable(path)} has {size / 1e9:.0f} GB, more than {MOST_BYTES / 1e9:.0f}: extract "
            "some frames"
        )


def check_announced(path: Path, kind: str) -> None:
    """Raise `ValueError` if a file announces more atoms than it has bytes."""
    size = path.stat().st_size
    announced = _largest(path, kind) if size else 0
    if announced > size:
        raise ValueError(f"it announces {announced} atoms")


def _largest(path: Path, kind: str) -> int:
    """Return the largest number of atoms that a file announces, or 0."""
    with path.open("rb") as file:
        if kind in COUNTS:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
                found = (match[1] for match in COUNTS[kind].finditer(text))
                return max((int(number[:LONGEST]) for number in found), default=0)
        if kind in ("vasp", "vasp-xdatcar"):  # numbers per element, below their names
            rows = [file.readline(LONGEST).split() for _ in range(7)]
            return max(sum(map(int, takewhile(bytes.isdigit, row))) for row in rows[5:])
    return 0
