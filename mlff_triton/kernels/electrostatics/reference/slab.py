"""Correction of Ewald sums for slabs, in plain PyTorch.

    E = 2 pi C / V (M^2 - Q sum_i q_i z_i^2 - Q^2 L^2 / 12)      M = sum_i q_i z_i

where z is along the normal of the slab, L is the height of the cell along it, Q is the total charge
and C is Coulomb's constant. The term in M is from I.-C. Yeh and M. L. Berkowitz, J. Chem. Phys.
111, 3155 (1999), https://doi.org/10.1063/1.479595, and those in Q are from V. Ballenegger,
A. Arnold and J. J. Cerdà, J. Chem. Phys. 131, 094107 (2009), https://doi.org/10.1063/1.3216473.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from mlff_triton.kernels.electrostatics.reference.systems import heights, unit_normals, volumes
from mlff_triton.kernels.electrostatics.types import COULOMB, ChannelSums, Electrostatics

Total = Callable[[Tensor], Tensor]
"""Function that sums rows [N, F] of atoms to systems [B, F]."""


class Moments(NamedTuple):
    """Moments of charges along the normal of slabs.

    Attributes
    ----------
    normal : float64 [B, 3]
        Unit vector across each slab.
    z : float64 [N, 1]
        Position along it, Å.
    factor, height : float64 [B, 1]
        ``2 pi C / V`` in eV/e^2/Å^2, and L in Å.
    charge, dipole, second : float64 [B, C]
        Sums of ``q``, ``q z`` and ``q z^2``.
    """

    normal: Tensor
    z: Tensor
    factor: Tensor
    height: Tensor
    charge: Tensor
    dipole: Tensor
    second: Tensor

    @classmethod
    def of(
        cls,
        charges: Tensor,
        positions: Tensor,
        cell: Tensor,
        system: Tensor,
        axis: int,
        total: Total,
    ) -> Moments:
        """Compute the moments of charges [N, C]; all else as for `slab_correction`."""
        normal, height = unit_normals(cell, axis), heights(cell)[:, axis, None]
        factor = 2 * math.pi * COULOMB / volumes(cell)[:, None]
        z = (positions * normal[system]).sum(1, keepdim=True)
        sums = total(torch.cat([charges, charges * z, charges * z * z], dim=1)).chunk(3, dim=1)
        return cls(normal, z, factor, height, *sums)

    def energies(self) -> Tensor:
        """Return the energy [B, C] of each kind of charge in eV."""
        ends = self.charge * (self.second + self.charge * self.height**2 / 12)
        return self.factor * (self.dipole**2 - ends)

    def potentials(self, system: Tensor) -> Tensor:
        """Return the derivatives [N, C] of the energies by the charges in V."""
        constant = self.second + self.charge * self.height**2 / 6
        along = 2 * self.dipole[system] * self.z - self.charge[system] * self.z**2
        return self.factor[system] * (along - constant[system])

    def slopes(self, system: Tensor) -> Tensor:
        """Return the derivatives [N, C] of the potentials by z, at constant moments, in V/Å."""
        return 2 * self.factor[system] * (self.dipole[system] - self.charge[system] * self.z)


def slab_correction(
    charges: Tensor, positions: Tensor, cell: Tensor, system: Tensor, axis: int, total: Total
) -> Electrostatics:
    """Compute the correction of slabs.

    Parameters
    ----------
    charges : [N]
        Partial charges, elementary charges.
    positions : [N, 3]
        Å; a slab must not be divided by a face of its cell.
    cell : [B, 3, 3]
        Lattice vectors as rows, Å.
    system : int64 [N]
        System of each atom.
    axis : {0, 1, 2}
        Lattice vector that is not in the plane of the slab.
    total : callable
        Function that sums rows [N, 3] of atoms to systems [B, 3].

    Returns
    -------
    Electrostatics
    """
    atoms = charges.double()[:, None], positions.double(), cell.double(), system
    moments = Moments.of(*atoms, axis, total)
    potential = moments.potentials(system)[:, 0].to(charges.dtype)
    return Electrostatics(moments.energies()[:, 0], potential)


def slab_sums(
    charges: Tensor,
    weights: Tensor,
    positions: Tensor,
    cell: Tensor,
    system: Tensor,
    axis: int,
    total: Total,
) -> ChannelSums:
    """Compute the correction of slabs for several kinds of charges, without autograd.

    Energies are quadratic in lengths along the normal n, and inverse to the volume. So their
    derivative by strain is ``E (2 n n - 1)``.

    Parameters
    ----------
    charges : [N, C]
        Elementary charges.
    weights : float64 [C]
        Weights of the energies of each kind of charge.
    positions, cell, system, axis, total
        As for `slab_correction`, in float64.

    Returns
    -------
    ChannelSums
    """
    moments = Moments.of(charges.double(), positions, cell, system, axis, total)
    normal = moments.normal
    along = (charges.double() * weights * moments.slopes(system)).sum(1, keepdim=True)
    energy = (moments.energies() * weights).sum(1)[:, None, None]
    one = torch.eye(3, dtype=cell.dtype, device=cell.device)
    strained = 2 * normal[:, :, None] * normal[:, None] - one
    return ChannelSums(
        moments.potentials(system).to(charges.dtype), along * normal[system], energy * strained
    )
