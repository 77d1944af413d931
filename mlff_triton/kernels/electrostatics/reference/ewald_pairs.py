"""Real-space part of an Ewald sum over a neighbor list, in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.kernels.electrostatics.reference.systems import sum_systems, system_of
from mlff_triton.kernels.electrostatics.types import COULOMB, Electrostatics


def ewald_pairs(
    charges: Tensor,
    positions: Tensor,
    cell: Tensor,
    batch: Tensor | None,
    row_ptr: Tensor,
    senders: Tensor,
    shifts: Tensor,
    splitting: float,
    cutoff: float,
) -> Electrostatics:
    """Compute `mlff_triton.kernels.electrostatics.ewald_pairs.ewald_pairs`."""
    system = system_of(batch, charges, cell)
    atoms = torch.arange(len(charges), device=charges.device)
    receivers = atoms.repeat_interleave(row_ptr.diff(), output_size=len(senders))
    senders, points = senders.long(), positions.double()
    translations = (shifts.double()[:, None] @ cell.double()[system[receivers]])[:, 0]
    vectors = (points[receivers] - points[senders] - translations).to(charges.dtype)
    squared = (vectors**2).sum(1)
    near = ~(squared >= cutoff**2)  # NaN stays
    distance = torch.where(near, squared, 1.0).sqrt()
    factor = torch.where(near, torch.erfc(splitting * distance) / distance, 0.0)
    potential = COULOMB * torch.zeros_like(charges).index_add(
        0, receivers, factor * charges[senders]
    )
    energies = 0.5 * charges.double() * potential.double()
    return Electrostatics(sum_systems(energies, system, len(cell)), potential)
