"""Structures and their results as extended XYZ, many at once, with the same bytes as ASE."""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io.extxyz import write_extxyz

from mlff_triton.dynamics.trajectories.atom_lines import lines_of_many
from mlff_triton.dynamics.trajectories.comment import comment_of, with_info

UNCERTAINTY = "uncertainty"
WRITTEN = ("energy", "forces", "stress", "charges", "dipole", UNCERTAINTY)
COLUMNS = {  # results of atoms
    "forces": "forces:R:3",
    "charges": "charge:R:1",
    UNCERTAINTY: "uncertainty:R:1",
}
PLAIN = {"numbers", "positions"}  # arrays of atoms that need no writer of ASE


class Shown(NamedTuple):
    """A structure in the form in which it is written.

    Attributes
    ----------
    atoms : Atoms
        The structure, whose information is written and whose calculator is not.
    results : mapping
        Results in the form of ASE's calculators; those in `WRITTEN` are written.
    own : mapping
        Information from the package, which precedes the structure's own.
    """

    atoms: Atoms
    results: Mapping[str, Any]
    own: Mapping[str, Any]


def with_results(atoms: Atoms, results: Mapping[str, Any]) -> Atoms:
    """Return a copy of a structure with those results that are written to files."""
    kept: Atoms = atoms.copy()
    kept.set_constraint()
    shown = {key: results[key] for key in WRITTEN if key in results}
    known = shown.pop(UNCERTAINTY, None)
    kept.calc = SinglePointCalculator(kept, **shown)
    if known is not None:  # which ASE has no name for
        kept.calc.results[UNCERTAINTY] = known
    return kept


def extended_xyz(images: Sequence[Atoms], own: Sequence[Mapping[str, Any]] = ()) -> bytes:
    """Return the text of a file in extended XYZ, with the results of structures.

    Parameters
    ----------
    images : sequence of Atoms
        Structures with their results.
    own : sequence of mappings, optional
        Information from the package about each structure, which precedes the structure's own.

    Returns
    -------
    bytes
        The text. ASE reads all information back as it was: see `comment`.
    """
    results = [{} if atoms.calc is None else atoms.calc.results for atoms in images]
    rows = zip(images, results, own or [{}] * len(images), strict=True)
    return text_of([Shown(*row) for row in rows])


def text_of(frames: Sequence[Shown]) -> bytes:
    """Return the text of structures in extended XYZ.

    The lines of plain structures are formatted together, because the overhead per call exceeds the
    formatting of one structure.
    """
    texts = [b""] * len(frames)
    together: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for k, frame in enumerate(frames):
        if _is_plain(frame.atoms):
            together[tuple(name for name in COLUMNS if name in frame.results)].append(k)
        else:
            texts[k] = _by_ase(frame)
    for columns, some in together.items():
        numbers = [frames[k].atoms.numbers for k in some]
        lines = lines_of_many(numbers, [_values(frames[k], columns) for k in some])
        for k, rows in zip(some, lines, strict=True):
            texts[k] = _head(frames[k], columns).encode() + rows
    return b"".join(texts)


def _is_plain(atoms: Atoms) -> bool:
    return len(atoms) > 0 and atoms.arrays.keys() == PLAIN and not atoms.constraints


def _values(frame: Shown, columns: Sequence[str]) -> np.ndarray:
    atoms, results = frame.atoms, frame.results
    parts = [np.reshape(results[name], (len(atoms), -1)) for name in columns]
    return np.concatenate([atoms.positions, *parts], axis=1)


def _head(frame: Shown, columns: Sequence[str]) -> str:
    """Return the first two lines, as ASE writes them, with all information."""
    atoms = frame.atoms
    names = ":".join(["species:S:1:pos:R:3", *(COLUMNS[name] for name in columns)])
    comment = comment_of(atoms.cell.array, atoms.pbc, names, frame.results)
    return f"{len(atoms)}\n{with_info(comment, atoms.info, frame.own)}\n"


def _by_ase(frame: Shown) -> bytes:
    """Return the text of any structure."""
    bare = with_results(frame.atoms, frame.results)
    bare.set_constraint(frame.atoms.constraints)
    bare.info = {}
    if UNCERTAINTY in frame.results:
        bare.set_array(UNCERTAINTY, np.asarray(frame.results[UNCERTAINTY]))
    text = io.StringIO()
    write_extxyz(text, [bare])
    count, comment, rows = text.getvalue().split("\n", 2)
    return f"{count}\n{with_info(comment, frame.atoms.info, frame.own)}\n{rows}".encode()
