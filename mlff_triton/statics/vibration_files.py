"""Frequencies as CSV or JSON, for other programs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np

from mlff_triton.calculators._fixed_atoms import fixed_atoms
from mlff_triton.statics.vibrations import IdealGas, Vibrations

COLUMNS = ("mode", "frequency_per_cm", "energy_meV", "is_imaginary")


def frequencies_as_csv(found: Vibrations) -> bytes:
    """Return a row per mode; imaginary frequencies are negative, and marked."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_rows(found))
    return text.getvalue().encode()


def frequencies_as_json(found: Vibrations, gas: IdealGas | None = None) -> bytes:
    """Return the modes as in CSV, with energies, fixed atoms and a molecule's thermochemistry."""
    content = {
        "n_atoms": len(found.atoms),
        "fixed_atoms": np.flatnonzero(fixed_atoms(found.atoms)).tolist(),
        "energy_eV": found.energy,
        "max_force_eV_per_A": found.max_force,
        "zero_point_energy_eV": found.zero_point_energy,
        "n_imaginary": found.n_imaginary,
        "modes": list(_rows(found)),
        "ideal_gas": None if gas is None else asdict(gas),
    }
    return (json.dumps(content, indent=1) + "\n").encode()


def _rows(found: Vibrations) -> Iterator[dict[str, Any]]:
    for k, energy in enumerate(found.energies):
        frequency = found.frequencies[k]
        values = (frequency.real - frequency.imag, 1000 * (energy.real - energy.imag))
        yield dict(zip(COLUMNS, (k, *map(float, values), bool(frequency.imag)), strict=True))
