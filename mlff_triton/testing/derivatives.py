"""Forces and stress from finite differences of the energy, for comparison with analytic ones."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from ase import Atoms
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
Energy = Callable[[Atoms], float]

VOIGT = ((0, 0), (1, 1), (2, 2), (1, 2), (0, 2), (0, 1))  # ASE's order: xx, yy, zz, yz, xz, xy


def finite_difference_forces(energy: Energy, atoms: Atoms, step: float = 1e-4) -> FloatArray:
    """Compute forces by fourth-order central differences of an energy.

    Parameters
    ----------
    energy : callable
        Function from atoms to their energy in eV, such as ``calculator.get_potential_energy``.
    atoms : ase.Atoms
        The structure, which is not modified.
    step : float
        Displacement in Å.

    Returns
    -------
    float64 [N, 3]
        Forces in eV/Å.

    Examples
    --------
    >>> from ase.calculators.lj import LennardJones
    >>> atoms = Atoms("H2", [[0.0, 0.0, 0.0], [0.0, 0.0, 2 ** (1 / 6)]])
    >>> forces = finite_difference_forces(LennardJones().get_potential_energy, atoms)
    >>> bool(abs(forces).max() < 1e-6)
    True
    """
    forces = np.empty((len(atoms), 3))
    for index in np.ndindex(*forces.shape):

        def along(length: float, index: tuple[int, ...] = index) -> float:
            moved = atoms.copy()
            moved.positions[index] += length
            return energy(moved)

        forces[index] = -_derivative(along, step)
    return forces


def finite_strain_stress(energy: Energy, atoms: Atoms, step: float = 1e-4) -> FloatArray:
    """Compute the stress by fourth-order central differences of an energy with respect to strain.

    Parameters
    ----------
    energy : callable
        Function from atoms to their energy in eV, such as ``calculator.get_potential_energy``.
    atoms : ase.Atoms
        The structure, with three cell vectors, which is not modified.
    step : float
        Strain increment.

    Returns
    -------
    float64 [6]
        Stress in eV/Å³, in ASE's order (xx, yy, zz, yz, xz, xy) and sign (positive if the energy
        increases with the size of the cell).
    """
    stress = np.empty(6)
    for component, (i, j) in enumerate(VOIGT):

        def along(length: float, i: int = i, j: int = j) -> float:
            strain = np.zeros((3, 3))
            strain[i, j] += length / 2
            strain[j, i] += length / 2
            return energy(transformed(atoms, np.eye(3) + strain))

        stress[component] = _derivative(along, step) / atoms.get_volume()
    return stress


def transformed(atoms: Atoms, matrix: FloatArray) -> Atoms:
    """Copy atoms, and map every position and cell vector ``v`` to ``v @ matrix``."""
    result: Atoms = atoms.copy()
    result.set_cell(atoms.cell.array @ matrix)
    result.positions = atoms.positions @ matrix
    return result


def _derivative(function: Callable[[float], float], step: float) -> float:
    near = function(step) - function(-step)
    far = function(2 * step) - function(-2 * step)
    return (8 * near - far) / (12 * step)
