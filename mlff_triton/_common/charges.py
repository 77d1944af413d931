"""The total charge as the sum of charges of atoms, and the names that files give it."""

from __future__ import annotations

import math
from collections.abc import Iterable

NEAR = 0.1  # largest difference of the sum of partial charges from an integer, elementary charges
_ORIGINS = "total", "tot", "net", "formal", "molecular", "mol", "system", "ref", "dft"
_NAMES = frozenset(
    {"charge", "ref_total_charge", "qtot", "q_tot", *(f"{word}_charge" for word in _ORIGINS)}
)


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
