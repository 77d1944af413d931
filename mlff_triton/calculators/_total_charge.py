"""The total charge of a structure, as users and other packages store it in ``Atoms.info``."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from ase import Atoms

from mlff_triton._common.charges import (
    is_number,
    is_open_shell,
    names_spin,
    names_total_charge,
    sum_of_charges,
)
from mlff_triton._common.text import short_repr
from mlff_triton.engine.batch import MAX_CHARGE, check_charge
from mlff_triton.errors import InputError

CHARGE = "charge"


class UnusedInfoWarning(UserWarning):
    """A structure states a charge or a spin in a form that is not used here."""


def total_charge(info: Mapping[Any, Any]) -> int:
    """Return the total charge of a structure: ``info["charge"]``, or 0 if there is none.

    A list or an array of one element counts as its element.

    Raises
    ------
    InputError
        If it is anything other than an integer.

    Examples
    --------
    >>> total_charge({"charge": [-2]})
    -2
    """
    given = info.get(CHARGE, 0)
    if type(given) is int and -MAX_CHARGE <= given <= MAX_CHARGE:  # quick, for every step
        return given
    try:
        return int(check_charge(given)[0])
    except InputError:
        raise InputError(
            f"the total charge must be an integer, not {_shown(given)}: correct "
            'info["charge"], or give --charge'
        ) from None


def noted_charge(atoms: Atoms) -> dict[str, Any]:
    """Return the total charge that a structure states, as an entry of ``info``, or nothing.

    That is ``info["charge"]`` or, without it, the sum of the initial charges of atoms if that is
    not zero: formal charges, or partial charges that add up to an integer within 0.1.
    `total_charge` refuses any other sum.
    """
    if CHARGE in atoms.info:
        return {CHARGE: atoms.info[CHARGE]}
    charges = atoms.arrays.get("initial_charges")
    total = 0 if charges is None else sum_of_charges(charges)
    return {CHARGE: total} if total else {}


def charge_of(atoms: Atoms) -> int:
    """Return the total charge of a structure, or 0 if it states none.

    Raises
    ------
    InputError
        If that is not an integer.
    """
    return total_charge(noted_charge(atoms))


def notes_charge_or_spin(key: object) -> bool:
    """Return True if a key of ``info`` is one that `unused_info` looks for."""
    return names_total_charge(key) or names_spin(key)


def unused_info(info: Mapping[Any, Any], charge: float) -> str:
    """Return one line about a charge or a spin that the computation ignores, or an empty text.

    Parameters
    ----------
    info : mapping
        Information of a structure, with keys of any type.
    charge : float
        Total charge of the computation.
    """
    for key, value in info.items():
        if names_total_charge(key) and key != CHARGE and not is_number(value, charge):
            return (
                f"{key}={_shown(value)} of a structure is not used: its total charge is "
                f'{charge:g}. If that is wrong, set info["charge"], or give --charge'
            )
        if is_open_shell(key, value):
            return f"{key}={_shown(value)} of a structure is not used: models know no spin"
    return ""


def _shown(value: object) -> str:
    return short_repr(value.item() if isinstance(value, np.generic) else value)


class UnusedInfo:
    """Warns once of charges and spins that are not used."""

    def __init__(self) -> None:
        self._has_warned = False

    def check(self, info: Mapping[Any, Any], charge: float) -> None:
        """Warn about the first structure that states a charge or spin that is not used.

        Warns
        -----
        UnusedInfoWarning
            Once.
        """
        if self._has_warned or not info:
            return
        text = unused_info(info, charge)
        if text:
            self._has_warned = True
            warnings.warn(text, UnusedInfoWarning, stacklevel=3)
