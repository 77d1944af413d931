"""Repulsive wall inside which labels come from the nuclear repulsion, not from the teacher.

No teacher knows atoms that nearly touch. Inside the wall, the energy is that of the same structure
with the pair moved out to the wall, and the difference in nuclear repulsion (ZBL, see
`mlff_triton.model.zbl`). All else is rigid, and forces are the exact gradient of this energy.
"""

from __future__ import annotations

import numpy as np
import torch
from ase.data import covalent_radii
from numpy.typing import NDArray
from torch import Tensor

from mlff_triton.model.config import MAX_CUTOFF, ZBLConfig
from mlff_triton.model.zbl import zbl_energy
from mlff_triton.units import BOHR, HARTREE

SHARE, SHARE_OF_HYDROGEN = 0.65, 0.7  # of the sum of covalent radii
# There, slopes of the nuclear repulsion are those of compressed single bonds, and at most twice
# those of triple bonds, which are 1.2 times as long as the wall.
ZBL = ZBLConfig(cutoff=MAX_CUTOFF, prefactor=HARTREE * BOHR)


def wall_radius(first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the distances in Å inside which labels come from the nuclear repulsion."""
    share = np.where(np.minimum(first, second) > 1, SHARE, SHARE_OF_HYDROGEN)
    return np.asarray(share * (covalent_radii[first] + covalent_radii[second]))


def moved_out(x: Tensor, pair: Tensor, side: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
    """Move one side of each structure along the axis of a pair until it is at the wall.

    Parameters
    ----------
    x : [B, N, 3]
        Positions in Å.
    pair : int64 [B, 2]
        Two atoms inside the wall; the second is on the side that moves.
    side : bool [B, N]
        Atoms that move.
    radius : [B]
        Distances in Å at which the wall begins.

    Returns
    -------
    moved : [B, N, 3]
        Positions with the pair at the wall.
    distance : [B]
        Distances of the pairs at the given positions, in Å.
    """
    structure = torch.arange(len(x), device=x.device)
    along = x[structure, pair[:, 1]] - x[structure, pair[:, 0]]
    distance = along.norm(dim=1)
    shift = along * (radius / distance - 1)[:, None]
    return x + side[:, :, None] * shift[:, None, :], distance


def wall_energy(distance: Tensor, radius: Tensor, z: Tensor) -> Tensor:
    """Return the nuclear repulsion in eV [B] of pairs of nuclei [B, 2], above that at the wall."""
    z_i, z_j = z.to(distance.dtype).T
    inner, outer = (2 * zbl_energy(ZBL, r, z_i, z_j) for r in (distance, radius))
    return inner - outer
