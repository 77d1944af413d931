"""Frames of GRO files: a title, the number of atoms, the atoms, and the box."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

from ase import Atoms

from mlff_triton.readers.ase_text import structure_of
from mlff_triton.readers.elements import HYDROGEN, element, elements_of_names, masses_of
from mlff_triton.readers.lines import (
    LONGEST,
    DividingError,
    announced_count,
    announced_lines,
)


def split(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the text of each frame."""
    number = 0
    while title := file.readline(LONGEST):
        head = file.readline(LONGEST)
        if not head and not title.strip():  # blank lines at the end
            return
        if not title.strip() and not head.strip() and not file.read(LONGEST).strip():
            return
        atoms = announced_lines(file, announced_count(head, number), number)
        box = file.readline(LONGEST)
        if not box.strip():
            raise DividingError(f"frame {number} lacks its box")
        yield b"".join([title, head, *atoms, box])
        number += 1


def parse(text: bytes) -> Atoms:
    """Return the structure of a frame; elements follow from names of atoms and residues."""
    atoms = structure_of(text, "gromacs")
    residues = zip(atoms.arrays["residuenumbers"], atoms.arrays["residuenames"], strict=True)
    symbols = elements_of_names(atoms.arrays["atomtypes"].tolist(), list(residues))
    isotopes = [HYDROGEN.get(symbol, 0) for symbol in symbols]
    atoms.numbers[:] = [element(symbol, atom) for atom, symbol in enumerate(symbols)]
    if any(isotopes):
        atoms.set_masses(masses_of(atoms.numbers, isotopes))
    return atoms
