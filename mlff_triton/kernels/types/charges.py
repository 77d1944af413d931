"""Constants of the Coulomb energy of partial charges."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

DAMPING = 4.6
"""Distance in Å below which the Coulomb energy of a pair is damped."""
SumParts = Callable[[Tensor], Tensor]
"""Function that sums values over all parts of a system that several processes compute."""


class ReactionField(NamedTuple):
    """Truncation of the Coulomb energy, with a continuous medium beyond the cutoff.

    Attributes
    ----------
    constants : float64 [3]
        Cutoff in Å; coefficient of the squared distance, 1/Å^3; and the shift that makes the energy
        of a pair zero at the cutoff, 1/Å.
    """

    constants: Tensor

    @classmethod
    def of(
        cls, cutoff: float, permittivity: float = 78.3, device: torch.device | str = "cpu"
    ) -> ReactionField:
        """Return the constants for a cutoff in Å and the relative permittivity of the medium."""
        denominator = (2 * permittivity + 1) * cutoff
        values = (
            cutoff,
            (permittivity - 1) / (denominator * cutoff**2),
            3 * permittivity / denominator,
        )
        return cls(torch.tensor(values, dtype=torch.float64, device=device))


class EwaldField(NamedTuple):
    """Division of the Coulomb energy between pairs within a cutoff and a sum over waves.

    Attributes
    ----------
    constants : float64 [2]
        Cutoff in Å, and the splitting parameter in 1/Å.
    """

    constants: Tensor

    @classmethod
    def of(cls, cutoff: float, splitting: float, device: torch.device | str = "cpu") -> EwaldField:
        """Return the constants for a cutoff in Å and a splitting parameter in 1/Å."""
        return cls(torch.tensor((cutoff, splitting), dtype=torch.float64, device=device))


class CoulombSums(NamedTuple):
    """Coulomb energies of charges, and sums over all partners of each atom.

    Attributes
    ----------
    grad_charges : [N, C]
        Gradients of the total energy by charges, by row.
    charges : [N]
        Weighted mean of each atom's charges, elementary charges. This and the following fields are
        in the user's order of atoms.
    forces : float64 [N, 3]
        eV/Å.
    atoms : float64 [7, N]
        Energy of each atom, and its share in the virial: the components xx, yy, zz, yz, xz and xy,
        eV.
    """

    grad_charges: Tensor
    charges: Tensor
    forces: Tensor
    atoms: Tensor


class AtomOrder(NamedTuple):
    """Rows of atoms in tensors of features, which may be sorted, and their systems.

    Attributes
    ----------
    rank : int32 [N]
        Row of each of the user's atoms.
    system_ptr : int32 [B + 1]
        First atom of each system, in the user's order.
    largest : int
        Number of atoms in the largest system, or more.
    computed : slice
        On a CPU, only these atoms of the user are computed; by default, all. Otherwise, rows must
        be in the user's order.
    """

    rank: Tensor
    system_ptr: Tensor
    largest: int
    computed: slice = slice(None)
