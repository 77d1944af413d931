"""Meshes for several charges per atom, with the gradients of their energy.

Each kind of charge is a system of its own for `mesh_ewald`, at the same places. So meshes take as
much memory as there are kinds of charges.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.kernels.electrostatics.arguments import system_pointers
from mlff_triton.kernels.electrostatics.mesh_ewald import mesh_gradients
from mlff_triton.kernels.electrostatics.reference.slab import slab_sums
from mlff_triton.kernels.electrostatics.types import ChannelSums, PMEParameters
from mlff_triton.kernels.ops.segment_sum import segment_sum
from mlff_triton.kernels.types.charges import SumParts


def channel_sums(
    charges: Tensor,
    weights: Tensor,
    positions: Tensor,
    cell: Tensor,
    system: Tensor,
    parameters: PMEParameters,
    sum_parts: SumParts | None = None,
) -> ChannelSums:
    """Compute potentials at atoms, and the gradients of their energy, without autograd.

    Results are reproducible to the bit, and calls can be captured in a CUDA graph. Values are not
    checked; NaN in the input makes results NaN.

    Parameters
    ----------
    charges : [N, C]
        Elementary charges; float32 or float64, which the meshes have, too. All C kinds are
        independent of one another, and need not be neutral.
    weights : float64 [C]
        Weights of the energies of each kind of charge.
    positions : float64 [N, 3]
        Å; anywhere.
    cell : float64 [B, 3, 3]
        Lattice vectors as rows, Å.
    system : int32 [N]
        System of each atom, ascending.
    parameters : PMEParameters
        Splitting, mesh, order, and the direction in which systems are slabs.
    sum_parts : callable, optional
        Function that sums values over all parts of the systems, if these are the atoms of one part.
        Charges and moments are summed, so all parts have the same meshes.

    Returns
    -------
    ChannelSums
        Of the given atoms, but virials are those of the whole systems.

    Raises
    ------
    InputError
        If all meshes together have more than 2^31 points.
    """
    n_atoms, n_channels = charges.shape
    numbers = torch.arange(n_channels, dtype=system.dtype, device=system.device)
    found = mesh_gradients(
        charges.T.reshape(-1),
        positions.repeat(n_channels, 1),
        cell.repeat(n_channels, 1, 1),
        (numbers[:, None] * len(cell) + system).flatten(),
        parameters,
        sum_parts,
    )
    factors = weights[:, None, None]
    gradient = (found.positions.view(n_channels, n_atoms, 3) * factors).sum(0)
    by_cell = (found.cell.view(n_channels, len(cell), 9) * factors).sum(0).view_as(cell)
    outer = (positions[:, :, None] * gradient[:, None, :]).flatten(1)
    pointers = system_pointers(system, len(cell))
    virial = segment_sum(outer, pointers).view_as(cell)
    potential = found.charges.view(n_channels, n_atoms).T
    sums = ChannelSums(potential, gradient, virial + cell.mT @ by_cell)
    if parameters.slab is None:
        return sums

    def total(rows: Tensor) -> Tensor:
        sums = segment_sum(rows, pointers)
        return sums if sum_parts is None else sum_parts(sums)

    given = charges, weights, positions, cell, system.long(), parameters.slab
    return sums.plus(slab_sums(*given, total))
