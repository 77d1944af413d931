"""Energies, forces and virials of dispersion, and the range of pairs that count."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlff_triton.units import BOHR, HARTREE

CUTOFF = 40.0
"""Distance in Bohr, 21.2 Å, beyond which pairs of atoms do not count."""
WIDTH = 5.0
"""Distance in Bohr before the cutoff over which the energy of a pair fades out."""

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Contribution:
    """Results of a dispersion correction for a batch.

    Attributes
    ----------
    energy : float64 [B]
        eV.
    forces : float64 [N, 3]
        eV/Å.
    virial : float64 [B, 3, 3]
        ``dE/dstrain`` in eV.
    atom_energies : float64 [N] or None
        Energy of each atom in eV, half of the energy of its pairs, if requested.
    """

    energy: FloatArray
    forces: FloatArray
    virial: FloatArray
    atom_energies: FloatArray | None

    @classmethod
    def of_atomic_units(
        cls,
        energy: FloatArray,
        gradient: FloatArray,
        virial: FloatArray,
        atom_energies: FloatArray | None,
    ) -> Contribution:
        """Convert from Hartree and Bohr; the gradient [N, 3] is by positions."""
        of_atoms = None if atom_energies is None else HARTREE * atom_energies
        symmetric = (virial + virial.transpose(0, 2, 1)) / 2
        return cls(HARTREE * energy, -HARTREE / BOHR * gradient, HARTREE * symmetric, of_atoms)
