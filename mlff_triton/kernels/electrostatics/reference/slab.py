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

import torch
from torch import Tensor

from mlff_triton.kernels.electrostatics.reference.systems import volumes
from mlff_triton.kernels.electrostatics.types import COULOMB, Electrostatics


def slab_correction(
    charges: Tensor,
    positions: Tensor,
    cell: Tensor,
    system: Tensor,
    axis: int,
    total: Callable[[Tensor], Tensor],
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
    cell, q = cell.double(), charges.double()
    across = torch.linalg.cross(cell[:, axis - 2], cell[:, axis - 1])
    normal = across / torch.linalg.vector_norm(across, dim=1, keepdim=True)
    volume = volumes(cell)
    height = volume / torch.linalg.vector_norm(across, dim=1)
    z = (positions.double() * normal[system]).sum(1)
    moments = total(torch.stack([q, q * z, q * z * z], dim=1))
    charge, dipole, second = moments.unbind(1)
    factor = 2 * math.pi * COULOMB / volume
    energy = factor * (dipole**2 - charge * second - charge**2 * height**2 / 12)
    constant = factor * (second + charge * height**2 / 6)
    potential = 2 * (factor * dipole)[system] * z - (factor * charge)[system] * z**2
    return Electrostatics(energy, (potential - constant[system]).to(charges.dtype))
