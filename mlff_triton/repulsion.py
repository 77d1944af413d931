"""Screened nuclear repulsion at short distances.

J. F. Ziegler, J. P. Biersack, U. Littmark, "The Stopping and Range of Ions in Solids" (1985),
eqs. 9 and 10, p. 147, switched off by a cosine cutoff as in TorchMD-NET's ZBL prior.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.config import ZBLConfig
from mlff_triton.radial_basis import cosine_cutoff
from mlff_triton.units import BOHR

SCREENING = ((0.1818, 3.2), (0.5099, 0.9423), (0.2802, 0.4029), (0.02817, 0.2016))


def zbl_energy(zbl: ZBLConfig, distance: Tensor, z_i: Tensor, z_j: Tensor) -> Tensor:
    """Half the repulsion of two nuclei, the share of one of them.

    Parameters
    ----------
    zbl : ZBLConfig
        Parameters.
    distance : [E]
        Distances in Å.
    z_i, z_j : [E]
        Nuclear charges in elementary charges.

    Returns
    -------
    [E]
        eV.
    """
    x = distance * zbl.length_scale * (z_i**0.23 + z_j**0.23) / (0.8854 * BOHR)
    screening = torch.stack([weight * torch.exp(-rate * x) for weight, rate in SCREENING]).sum(0)
    coulomb = 0.5 * zbl.prefactor * z_i * z_j / distance
    return coulomb * screening * cosine_cutoff(distance, 0.0, zbl.cutoff)
