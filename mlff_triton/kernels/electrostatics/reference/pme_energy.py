"""Electrostatics by particle-mesh Ewald, in plain PyTorch."""

from __future__ import annotations

from torch import Tensor

from mlff_triton.kernels.electrostatics.reference.ewald_pairs import ewald_pairs
from mlff_triton.kernels.electrostatics.reference.mesh_ewald import mesh_ewald
from mlff_triton.kernels.electrostatics.reference.slab import slab_correction
from mlff_triton.kernels.electrostatics.reference.systems import sum_systems, system_of
from mlff_triton.kernels.electrostatics.types import Electrostatics, PMEParameters
from mlff_triton.kernels.electrostatics.validity import check_edges, check_values


def pme_energy(
    charges: Tensor,
    positions: Tensor,
    cell: Tensor,
    batch: Tensor | None,
    row_ptr: Tensor,
    senders: Tensor,
    shifts: Tensor,
    parameters: PMEParameters,
    *,
    check: bool = True,
    warn_charged: bool = False,
) -> Electrostatics:
    """Compute `mlff_triton.kernels.electrostatics.pme_energy.pme_energy`."""
    system = system_of(batch, charges, cell)
    if check or warn_charged:
        values = charges, positions, cell, system, len(senders), parameters
        check_values(*values, warn_charged=warn_charged)
    if check:
        check_edges(len(charges), row_ptr, senders)
    atoms = charges, positions, cell, system
    near = ewald_pairs(*atoms, row_ptr, senders, shifts, parameters.splitting, parameters.cutoff)
    far = mesh_ewald(*atoms, parameters)
    energy, potential = near.energy + far.energy, near.potential + far.potential
    if parameters.slab is not None:
        slab = slab_correction(
            *atoms, parameters.slab, lambda rows: sum_systems(rows, system, len(cell))
        )
        energy, potential = energy + slab.energy, potential + slab.potential
    return Electrostatics(energy, potential)
