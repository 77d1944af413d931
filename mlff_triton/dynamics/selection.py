"""Selection of atoms by a short text: indices, elements and coordinates.

A selection is a list of parts with commas in between, and contains the atoms of all of them. A part
is a condition, or several conditions joined by ``&`` that must all hold:

=================  =============================================================
condition          atoms
=================  =============================================================
``7``              the atom with index 7; indices begin at 0
``0-11``           indices 0 to 11
``Cu``             all atoms of an element
``z<5``            coordinate in Å below a number; also ``<=``, ``>``, ``>=``, and x and y
``Cu&z<5``         copper atoms below z = 5 Å
=================  =============================================================
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable

import numpy as np
from ase import Atoms
from ase.data import atomic_numbers
from numpy.typing import NDArray

from mlff_triton._common.text import short_repr
from mlff_triton.errors import InputError

Mask = NDArray[np.bool_]

COMPARISONS: dict[str, Callable[[NDArray[np.float64], float], Mask]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
INDICES = re.compile(r"([0-9]{1,18})(?:\s*-\s*([0-9]{1,18}))?")
COORDINATE = re.compile(r"([xyz])\s*(<=|>=|<|>)\s*(\S+)")


def select_atoms(atoms: Atoms, text: str) -> Mask:
    """Return the atoms that a text selects.

    Parameters
    ----------
    atoms : Atoms
        The structure.
    text : str
        The selection, such as ``"0-11,Cu&z<5"``.

    Returns
    -------
    bool [N]

    Raises
    ------
    InputError
        If a condition is not understood, or a part selects no atom.

    Examples
    --------
    >>> from ase.build import molecule
    >>> select_atoms(molecule("H2O"), "O,1").tolist()
    [True, True, False]
    """
    selected = np.zeros(len(atoms), dtype=bool)
    for part in text.split(","):
        found = np.ones(len(atoms), dtype=bool)
        for condition in part.split("&"):
            found &= _matching(atoms, condition.strip())
        if not found.any():
            raise InputError(f"{short_repr(part.strip())} selects no atom{_reason(atoms, part)}")
        selected |= found
    return selected


def _matching(atoms: Atoms, condition: str) -> Mask:
    """Return the atoms that one condition selects."""
    if found := INDICES.fullmatch(condition):
        return _in_range(len(atoms), int(found[1]), int(found[2] or found[1]))
    if condition in atomic_numbers:
        return np.asarray(atoms.numbers == atomic_numbers[condition])
    if found := COORDINATE.fullmatch(condition):
        limit = _number(found[3])
        if limit is not None:
            return COMPARISONS[found[2]](atoms.positions[:, "xyz".index(found[1])], limit)
    raise InputError(
        f"{short_repr(condition)} selects no atoms, as it is not an index such as 7, a range such "
        "as 0-11, an element such as Cu, or a condition such as z<5"
    )


def _in_range(n_atoms: int, first: int, last: int) -> Mask:
    """Return True for atoms from a first to a last index, both included."""
    if first > last:
        raise InputError(f"the range {first}-{last} selects no atom: write {last}-{first}")
    if last >= n_atoms:
        raise InputError(
            f"atom {last} does not exist: {n_atoms} atoms have the indices 0 to {n_atoms - 1}"
        )
    index = np.arange(n_atoms)
    return (first <= index) & (index <= last)


def _number(text: str) -> float | None:
    """Return a finite number, or None."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _reason(atoms: Atoms, part: str) -> str:
    """Return the range of the coordinate in a part, as a hint."""
    found = COORDINATE.fullmatch(part.strip())
    if found is None:
        return f" of {short_repr(atoms.get_chemical_formula())}"
    values = atoms.positions[:, "xyz".index(found[1])]
    return f": {found[1]} lies between {values.min():.2f} and {values.max():.2f} Å"
