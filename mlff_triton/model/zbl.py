"""Screened nuclear repulsion at short distances (ZBL).

J. F. Ziegler, J. P. Biersack, U. Littmark, "The Stopping and Range of Ions in Solids" (1985),
eqs. 9 and 10, p. 147, switched off by a cosine cutoff as in TorchMD-NET's ZBL prior, or smoothly.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.kernels.types.nuclei import SCREENING, Nuclei
from mlff_triton.model.config import TensorNetConfig, ZBLConfig
from mlff_triton.model.radial_basis import cosine_cutoff, polynomial_cutoff
from mlff_triton.units import BOHR

SCREENING_LENGTH = 0.8854 * BOHR  # Å


def zbl_energy(zbl: ZBLConfig, distance: Tensor, z_i: Tensor, z_j: Tensor) -> Tensor:
    """Compute half the repulsion energy of two nuclei, which is the share of one atom.

    Parameters
    ----------
    zbl : ZBLConfig
        Parameters of the repulsion.
    distance : [E]
        Distances in Å.
    z_i, z_j : [E]
        Nuclear charges in elementary charges.

    Returns
    -------
    [E]
        Energies in eV.
    """
    x = distance * zbl.length_scale * (z_i**0.23 + z_j**0.23) / SCREENING_LENGTH
    screening = torch.stack([weight * torch.exp(-rate * x) for weight, rate in SCREENING]).sum(0)
    coulomb = 0.5 * zbl.prefactor * z_i * z_j / distance
    if zbl.is_smooth:
        return coulomb * screening * polynomial_cutoff((distance / zbl.cutoff).clamp(max=1.0))
    return coulomb * screening * cosine_cutoff(distance, 0.0, zbl.cutoff)


def nuclei_of(config: TensorNetConfig, device: torch.device) -> list[Nuclei]:
    """Precompute the factors of `zbl_energy` for each element and each repulsion of a model."""

    def tensor(*values: float) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=device)

    charges = [tensor(*zbl.charges_of(config.elements)) for zbl in config.repulsions]
    return [
        Nuclei(
            charge=charge,
            inverse_length=charge**0.23 * (zbl.length_scale / SCREENING_LENGTH),
            half_coulomb=tensor(zbl.prefactor / 2),
            cutoff=tensor(zbl.cutoff),
            ends=torch.full_like(charge.outer(charge), zbl.cutoff) if zbl.is_smooth else None,
        )
        for zbl, charge in zip(config.repulsions, charges, strict=True)
    ]
