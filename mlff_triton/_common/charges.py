"""The total charge as the sum of charges of atoms, and names that files give it and the spin."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

NEAR = 0.1  # largest difference of the sum of partial charges from an integer, elementary charges
_ORIGINS = "total", "tot", "net", "formal", "molecular", "mol", "system", "ref", "dft"
_NAMES = frozenset(
    {"charge", "ref_total_charge", "qtot", "q_tot", *(f"{word}_charge" for word in _ORIGINS)}
)


_MULTIPLICITIES = frozenset({"multiplicity", "spin_multiplicity", "mult"})
_SPINS = frozenset({"spin"})  # by convention, a spin of 1 may be a multiplicity


def names_spin(key: object) -> bool:
    """Return True if files of other programs may give the spin or the multiplicity this name."""
    return isinstance(key, str) and key.lower() in _MULTIPLICITIES | _SPINS


def is_open_shell(key: object, value: object) -> bool:
    """Return True if a value by this name says that a structure is not a singlet.

    Examples
    --------
    >>> is_open_shell("multiplicity", 3), is_open_shell("spin", 0), is_open_shell("charge", 3)
    (True, False, False)
    """
    if not names_spin(key):
        return False
    assert isinstance(key, str)
    singlets = (1,) if key.lower() in _MULTIPLICITIES else (0, 1)
    return not any(is_number(value, each) for each in singlets)


def is_number(value: object, expected: float) -> bool:
    """Return True if a value is a number, or a list or array of one, that is as expected."""
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        return False
    return array.size == 1 and bool(array.ravel()[0] == expected)


def names_total_charge(key: object) -> bool:
    """Return True if files of other programs may give the total charge this name.

    Examples
    --------
    >>> names_total_charge("Net charge"), names_total_charge("charges")
    (True, False)
    """
    return isinstance(key, str) and key.lower().replace(" ", "_") in _NAMES


def sum_of_charges(charges: Iterable[float]) -> int | str:
    """Return the sum of formal or partial charges as an integer, or a text if it is not one.

    The text takes the place of the total charge, and is refused unless the user gives another.

    Examples
    --------
    >>> sum_of_charges([-0.613, -0.391])
    -1
    """
    try:
        total = math.fsum(charges)
    except (TypeError, ValueError, OverflowError):  # lists or texts, or infinities of both signs
        return "the charges of its atoms, which have no sum"
    if not math.isfinite(total) or abs(total - round(total)) > NEAR:
        return f"{total:.3f} (the sum of the charges of its atoms)"
    return round(total)
