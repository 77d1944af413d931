"""Settings of a LAMMPS instance that a coupling depends on: units, types and time step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from ase.data import atomic_masses, atomic_numbers, chemical_symbols

from mlff_triton._common.text import short_repr
from mlff_triton.engine.batch import IntArray
from mlff_triton.engine.steps import Units
from mlff_triton.errors import InputError
from mlff_triton.neighbors.box import BoolArray, FloatArray
from mlff_triton.units import ENERGY_UNITS

UNITS = {"metal": Units(energy=ENERGY_UNITS["eV"]), "real": Units(energy=ENERGY_UNITS["kcal/mol"])}
FEMTOSECOND = {"metal": 1e-3, "real": 1.0}
LONGEST_TIMESTEP = 20.0
"""In fs; no atoms can be integrated with it. Time steps in fs that were read as ps are longer."""
MASS_TOLERANCE = 0.02
"""Relative difference within which a mass counts as that of an element."""


def find_units(lmp: Any) -> Units:
    """Return the units of a LAMMPS instance.

    Raises
    ------
    InputError
        If they are neither metal nor real.
    """
    name = lmp.extract_global("units")
    if name not in UNITS:
        raise InputError(f"LAMMPS has units {name}: use `units metal` or `units real`")
    return UNITS[name]


def check_timestep(lmp: Any) -> None:
    """Raise `InputError` if the time step seems to be in other units."""
    name, timestep = lmp.extract_global("units"), lmp.extract_global("dt")
    femtoseconds = timestep / FEMTOSECOND[name]
    if femtoseconds > LONGEST_TIMESTEP:
        raise InputError(
            f"the time step of {timestep:g} is {femtoseconds:g} fs in units {name}: "
            f"`timestep {0.5 * FEMTOSECOND[name]:g}` is 0.5 fs"
        )


def check_integrator(lmp: Any) -> None:
    """Raise `InputError` if LAMMPS would not compute the model in each step."""
    if lmp.extract_global("respa_levels") is not None:
        raise InputError("`run_style respa` would not compute the model in each step: remove it")


def find_box(lmp: Any) -> tuple[FloatArray, BoolArray]:
    """Return the present cell of a LAMMPS instance, float64 [3, 3] in Å, and its pbc, bool [3]."""
    low, high, xy, yz, xz, periodic, _ = lmp.extract_box()
    cell = np.diag(np.subtract(high, low))
    cell[1, 0], cell[2, 0], cell[2, 1] = xy, xz, yz
    return cell, np.array(periodic, dtype=bool)


def find_numbers(lmp: Any, elements: Sequence[str]) -> IntArray:
    """Return the atomic number of each LAMMPS type, and set masses that are missing.

    Parameters
    ----------
    lmp : lammps.lammps
        With a simulation box.
    elements : sequence of str
        Chemical symbol of each type, in order.

    Returns
    -------
    int64 [types + 1]
        Indexed by type; types start at 1.

    Raises
    ------
    InputError
        If a type has no element, a symbol is unknown, or masses show that the order is wrong.
    """
    if not lmp.extract_setting("box_exist"):
        raise InputError("there is no simulation box: read or create atoms before coupling")
    if isinstance(elements, str) or not all(isinstance(symbol, str) for symbol in elements):
        raise InputError(f'elements must be a list such as ["H", "O"], not {short_repr(elements)}')
    for symbol in elements:
        if atomic_numbers.get(symbol, 0) < 1:
            raise InputError(f"{short_repr(symbol)} is not the symbol of an element")
    n_types = lmp.extract_setting("ntypes")
    if len(elements) != n_types:
        raise InputError(
            f"LAMMPS has {n_types} atom types, but {len(elements)} elements were given "
            f"({' '.join(elements) or 'none'}): give one per type, in order"
        )
    numbers = np.array([0] + [atomic_numbers[symbol] for symbol in elements])
    _check_masses(lmp, numbers)
    return numbers


def _check_masses(lmp: Any, numbers: IntArray) -> None:
    """Set missing masses, and raise `InputError` if a mass fits the element of another type."""
    masses = lmp.extract_atom("mass")
    if not masses:
        return
    for kind, number in enumerate(numbers[1:], start=1):
        if masses[kind] == 0:
            lmp.command(f"mass {kind} {atomic_masses[number]}")
        elif not _is_mass(masses[kind], number):
            fitting = [z for z in numbers[1:] if _is_mass(masses[kind], z)]
            if fitting:
                given, other = (chemical_symbols[z] for z in (number, fitting[0]))
                raise InputError(
                    f"type {kind} is to be {given}, but has the mass of {other}: give elements in "
                    "the order of types"
                )


def _is_mass(mass: float, number: int) -> bool:
    expected = atomic_masses[number]
    return bool(abs(mass - expected) <= MASS_TOLERANCE * expected)
