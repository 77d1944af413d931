"""Data blocks of CIF files."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import IO

import numpy as np
from ase import Atoms
from ase.data import atomic_numbers
from ase.io.cif import CIFBlock, parse_cif

from mlff_triton.readers.ase_text import structure_of
from mlff_triton.readers.elements import OF_COFACTORS, OF_LIGANDS
from mlff_triton.readers.lines import checked_size, lines_of

CHARGES = re.compile(rb"_atom_site_(\w+_)?charge\b", re.IGNORECASE)
"""Columns of partial charges, which the standard does not name."""
TYPE, LABEL = "_atom_site_type_symbol", "_atom_site_label"
GROUP = "_atom_site_disorder_group"
SYMMETRY = (
    *("_space_group_symop_operation_xyz", "_space_group_symop.operation_xyz"),
    *("_symmetry_equiv_pos_as_xyz", "_space_group.it_number", "_space_group_it_number"),
    *("_symmetry_int_tables_number", "_space_group_name_h-m_alt"),
    *("_symmetry_space_group_name_h-m", "_space_group.patterson_name_h-m"),
)
"""Names of operations and space groups that ASE reads."""
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
    blocks = list(parse_cif(io.BytesIO(text)))
    for block in blocks:
        _refuse_misread(block)
    atoms = structure_of(text, "cif")
    _refuse_disorder(atoms)
    column = CHARGES.search(text)
    if column:
        _add_charges(atoms, blocks[0], column[0].decode().lower())
    name = text[text.lower().find(b"data_") + 5 :].split(maxsplit=1)
    if name:
        atoms.info["title"] = name[0].decode(errors="replace")
    return atoms


def _refuse_misread(block: CIFBlock) -> None:
    """Refuse sites and symmetry that ASE would ignore, or take for others."""
    is_label = TYPE not in block
    for site, given in enumerate(map(str, block.get(LABEL if is_label else TYPE, ()))):
        symbol = given[:2].capitalize()
        is_other = given[1:2].isupper() and atomic_numbers.get(symbol, 0)
        if is_other and (not is_label or symbol in OF_LIGANDS + OF_COFACTORS):
            raise ValueError(
                f"the element of site {site}, {given!r}, is not clear: write it as {symbol} or "
                f"{symbol[0]} in the column {TYPE}"
            )
    groups = {value for value in block.get(GROUP, ()) if value not in (".", "?")}
    if len(groups) > 1:
        raise ValueError("its sites are disordered: keep one disorder group")
    known = block.keys() & {"_space_group_name_hall", "_symmetry_space_group_name_hall"}
    halls = {str(block[key]).replace(" ", "").upper() for key in known} - {"P1", ".", "?"}
    if halls and not any(key in block and block[key] is not None for key in SYMMETRY):
        raise ValueError("its symmetry is given by a Hall symbol alone: add the operations")


def _add_charges(atoms: Atoms, block: CIFBlock, column: str) -> None:
    """Give atoms the charges of their sites, unless one is unknown."""
    of_sites = block.get(column)
    if all(isinstance(charge, (int, float)) for charge in of_sites):
        atoms.set_initial_charges(np.array(of_sites)[atoms.arrays["spacegroup_kinds"]])
