"""Conversion of a file's data on a structure to a checked frame, or to a reason against it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mlff_triton._common.text import one_line
from mlff_triton.errors import InputError
from mlff_triton.model.config import MAX_ATOMIC_NUMBER
from mlff_triton.training.frames import Array, Frame, formula
from mlff_triton.training.labels import Labels

CHARGE_TOLERANCE = 0.05  # elementary charges by which partial charges may miss the total charge
MAX_FORCE = 300.0  # eV/Å; labels above it are wrong, or belong to overlapping atoms
VOIGT = ((0, 5, 4), (5, 1, 3), (4, 3, 2))  # positions of xx, yy, zz, yz, xz, xy in a tensor


class BadFrameError(InputError):
    """A structure, or a label of it, that cannot be trained on."""


def checked_frame(name: str, found: Mapping[str, Any], labels: Labels) -> Frame:
    """Return a structure with its labels, in the units of the package.

    Parameters
    ----------
    name : str
        Name of the structure for messages.
    found : dict of str
        ``numbers``, ``positions``, ``cell``, ``pbc`` and the labels that the file has, in its
        units; maybe the ``forces_key`` of `Frames`.
    labels : Labels
        Their units.

    Raises
    ------
    BadFrameError
        If a label is missing, has the wrong shape or is not finite. Partial charges and dipoles may
        be NaN, for structures without them.
    """
    n = len(found["numbers"])
    numbers = _numbers(found["numbers"], "numbers", (n,))
    if n == 0 or not are_elements(numbers).all():
        raise BadFrameError("it has no atoms, or an atom without an element")
    for label, them in (("energy", "it"), ("forces", "them")):
        if label not in found:
            raise BadFrameError(
                f"it has no {label}: add {them}, or name {them} with --key {label}=NAME"
            )
    forces = _numbers(found["forces"], "forces", (n, 3)) * labels.forces
    largest = float(np.linalg.norm(forces, axis=1).max())
    if largest > MAX_FORCE:
        raise BadFrameError(
            f"it has a force of {largest:.4g} eV/Å, and at most {MAX_FORCE:g} is sane: check units"
        )
    charge = float(_numbers(found.get("charge", 0), "charge", ()))
    if charge != round(charge):
        raise BadFrameError(f"its charge is {charge:g}, which is not an integer")
    weight = float(_numbers(found.get("weight", 1), "weight", ()))
    if weight <= 0:
        raise BadFrameError(f"its weight is {weight:g}, and only one above 0 has a meaning")
    pbc = np.broadcast_to(np.asarray(found["pbc"], dtype=bool), 3)
    cell = _numbers(found["cell"], "cell", (3, 3)) * labels.length
    if pbc.any() and not cell[pbc].any(axis=1).all():
        raise BadFrameError("it is periodic in a direction without a lattice vector")
    return Frame(
        name=name,
        numbers=numbers.astype(np.int64),
        positions=_numbers(found["positions"], "positions", (n, 3)) * labels.length,
        cell=cell,
        pbc=pbc,
        charge=charge,
        energy=float(_numbers(found["energy"], "energy", ())) * labels.energy,
        forces=forces,
        stress=_stress(found.get("stress"), bool(pbc.all())) * labels.stress,
        group=one_line(found.get("group", "")) or formula(numbers.astype(np.int64)),
        split=one_line(found.get("split", "")),
        weight=weight,
        charges=_charges(found.get("charges"), n, charge),
        dipole=_dipole(found.get("dipole"), bool(pbc.any()), labels.dipole),
        series=one_line(found.get("series", "")),
        forces_key=found.get("forces_key", "forces"),
    )


def are_elements(numbers: Array) -> Array:
    """Return True for atomic numbers of elements."""
    return np.asarray((numbers >= 1) & (numbers <= MAX_ATOMIC_NUMBER) & (numbers % 1 == 0))


def _numbers(given: Any, label: str, shape: tuple[int, ...]) -> Array:
    """Return finite numbers of a shape in float64."""
    try:
        array = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise BadFrameError(f"its {label} cannot be read as numbers") from error
    if array.size != int(np.prod(shape)) or (shape and array.shape[0] != shape[0]):
        raise BadFrameError(
            f"the shape of its {label} is {list(array.shape)}, expected {list(shape)}"
        )
    if not np.isfinite(array).all():
        raise BadFrameError(f"there is NaN or infinity in its {label}")
    return array.reshape(shape)


def _charges(given: Any, n: int, charge: float) -> Array | None:
    """Return partial charges of n atoms, which add up to the total charge; None if unknown."""
    if given is None or _is_unknown(given):
        return None
    charges = _numbers(given, "charges", (n,))
    if abs(charges.sum() - charge) > CHARGE_TOLERANCE:
        raise BadFrameError(
            f"its charges add up to {charges.sum():.4g}, and its total charge is {charge:g}: "
            "correct them, or name the total charge with --key charge=NAME"
        )
    return charges


def _dipole(given: Any, is_periodic: bool, unit: float) -> Array | None:
    """Return a dipole in e Å; None if it is unknown, or undefined because of periodicity."""
    if given is None or is_periodic or _is_unknown(given):
        return None
    return _numbers(given, "dipole", (3,)) * unit


def _is_unknown(given: Any) -> bool:
    """Return True for an array of NaN."""
    array = np.asarray(given)
    return array.dtype.kind == "f" and bool(np.isnan(array).all())


def _stress(given: Any, is_periodic: bool) -> Array:
    """Return a stress as a tensor, given nine or six components; NaN if unknown."""
    if given is None or not is_periodic:
        return np.full((3, 3), np.nan)
    if np.size(given) == 6:
        given = _numbers(given, "stress", (6,))[np.array(VOIGT)]
    stress = _numbers(np.reshape(given, -1), "stress", (9,)).reshape(3, 3)
    return np.asarray((stress + stress.T) / 2)
