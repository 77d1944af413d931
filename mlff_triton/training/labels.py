"""Names and units of the labels in a file."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mlff_triton._common.charges import names_total_charge, sum_of_charges
from mlff_triton._common.text import printable, short_repr
from mlff_triton.errors import InputError
from mlff_triton.units import BOHR, DEBYE, ENERGY_UNITS, EV_PER_A3_TO_GPA, NM

NAMES: dict[str, tuple[str, ...]] = {
    "energy": ("energy", "energies", "E", "REF_energy"),
    "forces": ("forces", "F", "REF_forces"),
    "stress": ("stress", "REF_stress"),
    "charge": ("charge", "total_charge"),
    "group": ("group", "config_type"),
    "split": ("split",),
    "weight": ("weight", "config_weight"),
    "series": ("series",),
    "numbers": ("numbers", "atomic_numbers", "nuclear_charges", "z"),
    "positions": ("positions", "coordinates", "coords", "R"),
    "cell": ("cell", "lattice"),
    "pbc": ("pbc",),
    "n_atoms": ("n_atoms",),
    "charges": ("charges", "partial_charges", "REF_charges"),
    "dipole": ("dipole", "REF_dipole"),
}
"""Names in files by which each label is recognized."""

OF_CHARGES = ("charges", "dipole")
"""Labels that only models with partial charges are trained on."""

LENGTH_UNITS = {"A": 1.0, "Å": 1.0, "Bohr": BOHR, "nm": NM}  # one unit in Å
STRESS_UNITS = {
    "eV/A^3": 1.0,
    "eV/Å^3": 1.0,
    "GPa": 1 / EV_PER_A3_TO_GPA,
    "kbar": 0.1 / EV_PER_A3_TO_GPA,
}
DIPOLE_UNITS = {"e*A": 1.0, "e*Å": 1.0, "e*Bohr": BOHR, "Debye": DEBYE}


@dataclass(frozen=True)
class Labels:
    """Names and units of the labels in a file.

    Attributes
    ----------
    keys : dict of str
        Names in the file by the names in `NAMES`, instead of those that are recognized. A name that
        begins with ``-`` refers to the negative value, such as a gradient for forces.
    energy_unit : {"eV", "Hartree", "kcal/mol", "kJ/mol"}
        Unit of energies.
    length_unit : {"A", "Å", "Bohr", "nm"}
        Unit of positions and cells.
    force_unit : str, optional
        Unit of forces: one of energy and one of length with ``/`` between them. By default, those
        of energies and positions.
    stress_unit : {"eV/A^3", "eV/Å^3", "GPa", "kbar"}
        Unit of stresses, which are positive under tension, as in ASE.
    dipole_unit : {"e*A", "e*Å", "e*Bohr", "Debye"}
        Unit of dipoles. Partial charges are in elementary charges.
    with_charges : bool
        If True, partial charges and dipoles are read.

    Raises
    ------
    InputError
        If a label or a unit is unknown.

    Examples
    --------
    >>> round(Labels(energy_unit="Hartree", force_unit="Hartree/Bohr").forces, 6)
    51.422067
    """

    keys: Mapping[str, str] = field(default_factory=dict)
    energy_unit: str = "eV"
    length_unit: str = "A"
    force_unit: str | None = None
    stress_unit: str = "eV/A^3"
    dipole_unit: str = "e*A"
    with_charges: bool = False

    def __post_init__(self) -> None:
        for label in self.keys:
            _check_known("label", label, NAMES)
        _check_known("energy unit", self.energy_unit, ENERGY_UNITS)
        _check_known("length unit", self.length_unit, LENGTH_UNITS)
        _check_known("stress unit", self.stress_unit, STRESS_UNITS)
        _check_known("dipole unit", self.dipole_unit, DIPOLE_UNITS)
        if self.force_unit is not None:
            energy, _, length = self.force_unit.rpartition("/")
            _check_known("energy in the force unit", energy, ENERGY_UNITS)
            _check_known("length in the force unit", length, LENGTH_UNITS)

    @property
    def energy(self) -> float:
        """Unit of energies in eV."""
        return ENERGY_UNITS[self.energy_unit]

    @property
    def length(self) -> float:
        """Unit of lengths in Å."""
        return LENGTH_UNITS[self.length_unit]

    @property
    def forces(self) -> float:
        """Unit of forces in eV/Å."""
        if self.force_unit is None:
            return self.energy / self.length
        energy, _, length = self.force_unit.rpartition("/")
        return ENERGY_UNITS[energy] / LENGTH_UNITS[length]

    @property
    def stress(self) -> float:
        """Unit of stresses in eV/Å^3."""
        return STRESS_UNITS[self.stress_unit]

    @property
    def dipole(self) -> float:
        """Unit of dipoles in e Å."""
        return DIPOLE_UNITS[self.dipole_unit]

    def find(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the labels among the values in a file, by the names in `NAMES`.

        Raises
        ------
        InputError
            If several values may be one label.
        """
        found = {}
        for label in NAMES:
            if label in OF_CHARGES and not self.with_charges:
                continue
            key = self.key_of(label, values)
            value = None if key is None else values[key.removeprefix("-")]
            if key is not None and value is not None:
                found[label] = -np.asarray(value) if key.startswith("-") else value
        return found

    def key_of(self, label: str, names: Collection[str]) -> str | None:
        """Return the key of a label by its names in a file, or None if it is missing.

        Keys are those of the attribute ``keys``: names, after a ``-`` for the negative value.

        Raises
        ------
        InputError
            If several names may be those of the label.
        """
        if label in self.keys:
            key = self.keys[label]
            return key if key.removeprefix("-") in names else None
        found = [name for name in NAMES[label] if name in names]
        if len(found) > 1:
            raise InputError(
                f"{' and '.join(found)} may both be the {label}: choose with --key "
                f"{label}={found[-1]}"
            )
        return found[0] if found else None

    def unread_charges(self, values: Collection[str]) -> list[str]:
        """List the values that may be total charges by their names, but are not read.

        There are none if ``keys`` names the total charge.
        """
        if "charge" in self.keys:
            return []
        return [
            name
            for name in values
            if name not in NAMES["charge"] and (names_total_charge(name) or name == "Q")
        ]

    def charge_of_atoms(self, values: Mapping[str, Any]) -> dict[str, int | str]:
        """Return the total charge as the sum of initial charges, unless the file gives another.

        Calculators take the same sum, so a model computes a structure as it was trained. As there,
        a sum of zero counts for nothing, and one that is not an integer is a text.
        """
        if self.key_of("charge", values) or "charge" in self.keys:
            return {}
        total = sum_of_charges(values.get("initial_charges", ()))
        return {"charge": total} if total else {}


def unread_charge(name: str, example: float) -> str:
    """Return a line about a value that may be the total charge, but is not read."""
    return (
        f"{printable(name)}={example:g} is not read: if it is the total charge, add --key "
        f"charge={shlex.quote(printable(name))}; otherwise, give it another name"
    )


def parse_keys(given: Collection[str]) -> dict[str, str]:
    """Parse texts such as ``energy=REF_energy`` into labels and names.

    Raises
    ------
    InputError
        If a text has no ``=``, or a label has two names.

    Examples
    --------
    >>> parse_keys(["energy=REF_energy"])
    {'energy': 'REF_energy'}
    """
    pairs: dict[str, str] = {}
    for text in given:
        label, equals, name = text.partition("=")
        if not equals or not name:
            raise InputError(f"{short_repr(text)} does not name a label: write energy=REF_energy")
        if pairs.setdefault(label, name) != name:
            raise InputError(f"--key gives {label} two names, {pairs[label]} and {name}: keep one")
    return pairs


def _check_known(what: str, given: str, known: Collection[str]) -> None:
    if given not in known:
        raise InputError(
            f"the {what} {short_repr(given)} is unknown: use one of {', '.join(known)}"
        )
