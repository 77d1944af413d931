"""Data blocks of CIF files."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import IO

import numpy as np
from ase import Atoms
from ase.io.cif import parse_cif

from mlff_triton.readers.ase_text import structure_of
from mlff_triton.readers.lines import checked_size, lines_of

CHARGES = re.compile(rb"_atom_site_(\w+_)?charge\b", re.IGNORECASE)
"""Columns of partial charges, which the standard does not name."""
FULL = 0.005  # an occupancy is full if it differs from 1 by less


def split(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the blocks that hold atoms. Others describe a publication or an experiment."""
    lines: list[bytes] = []
    number = size = 0
    in_text = False
    for line in lines_of(file):
        if line.startswith(b";"):
            in_text = not in_text
        elif not in_text and line[:5].lower() == b"data_":
            if _has_atoms(lines):
                yield b"".join(lines)
                number += 1
            lines, size = [], 0
        lines.append(line)
        size = checked_size(lines, size, number)
    if _has_atoms(lines):
        yield b"".join(lines)


def _has_atoms(lines: list[bytes]) -> bool:
    return any(line.lstrip()[:10].lower() == b"_atom_site" for line in lines)


def _refuse_disorder(atoms: Atoms) -> None:
    """Refuse sites that are empty, or occupied by another element, in some of the cells."""
    for site in atoms.info.get("occupancy", {}).values():
        for symbol, share in site.items():
            if isinstance(share, (int, float)) and abs(share - 1) > FULL:
                raise ValueError(
                    f"{symbol} takes a site with an occupancy of {share:g}: make an ordered "
                    "structure first"
                )


def parse(text: bytes) -> Atoms:
    """Return the structure of a block; the block's name is its title."""
    if b"_atom_site.cartn_x" in text.lower():
        raise ValueError("this is an mmCIF file, which is not read: convert it to PDB")
    atoms = structure_of(text, "cif")
    _refuse_disorder(atoms)
    column = CHARGES.search(text)
    if column:
        _add_charges(atoms, text, column[0].decode().lower())
    name = text[text.lower().find(b"data_") + 5 :].split(maxsplit=1)
    if name:
        atoms.info["title"] = name[0].decode(errors="replace")
    return atoms


def _add_charges(atoms: Atoms, text: bytes, column: str) -> None:
    """Give atoms the charges of their sites, unless one is unknown."""
    (block,) = parse_cif(io.BytesIO(text))
    of_sites = block.get(column)
    if all(isinstance(charge, (int, float)) for charge in of_sites):
        atoms.set_initial_charges(np.array(of_sites)[atoms.arrays["spacegroup_kinds"]])
