"""Finite differences of functions with known derivatives."""

from __future__ import annotations

import numpy as np
import pytest
from ase import Atoms
from ase.stress import full_3x3_to_voigt_6_stress

from mlff_triton.testing import (
    finite_difference_forces,
    finite_strain_stress,
    random_crystal,
)


def test_finite_differences_of_a_known_function():
    atoms = random_crystal(3)
    before = atoms.copy()
    positions = atoms.positions

    def quartic(structure: Atoms) -> float:  # the stencil is exact for quartics
        return float((structure.positions**4).sum())

    assert finite_difference_forces(quartic, atoms) == pytest.approx(-4 * positions**3, rel=1e-6)

    def depends_on_cell(structure: Atoms) -> float:
        x, y, z = structure.cell.array
        return float(x @ x + x @ y + 3 * y @ z)

    x, y, z = atoms.cell.array
    gradient = 2 * np.outer(x, x) + np.outer(x, y) + np.outer(y, x)
    gradient += 3 * (np.outer(y, z) + np.outer(z, y))
    expected = full_3x3_to_voigt_6_stress(gradient) / atoms.get_volume()
    assert finite_strain_stress(depends_on_cell, atoms) == pytest.approx(expected, abs=1e-9)
    assert atoms == before
