"""Sums over edges and atoms at the end of a step, in plain PyTorch.

Arguments and results are those of `mlff_triton.kernels.tensornet.forces`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.kernels.common.reference.tensors import sum_at_receivers
from mlff_triton.kernels.types.edges import Edges


def forces(
    edge_grad: Tensor,
    edges: Edges,
    energies: Tensor,
    offsets: Tensor,
    order: Tensor,
    halves: bool = False,
    others: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute forces [N, 3], and energies and virials of atoms [7, N], in the user's order."""
    slots, receivers = edges.live()
    n_atoms, user = len(order), order.long()
    origin = edges.origin[slots].long()
    own = edge_grad[:, origin].double()
    opposite = edge_grad[:, edges.reverse[origin].long()].double()
    sums = sum_at_receivers((opposite - own).T.contiguous(), receivers, n_atoms)
    out = torch.empty_like(sums)
    out[user] = sums

    x, y, z = edges.direction[:, slots].double() * edges.distance[slots].double()
    gx, gy, gz = (own - opposite) / 2 if halves else own
    shear = [(y * gz + z * gy) / 2, (x * gz + z * gx) / 2, (x * gy + y * gx) / 2]
    virial = torch.stack([x * gx, y * gy, z * gz, *shear], dim=1)
    atoms = torch.empty(7, n_atoms, dtype=torch.float64, device=edge_grad.device)
    atoms[0, user] = energies.double() + offsets
    atoms[1:, user] = sum_at_receivers(virial, receivers, n_atoms).T
    return (out, atoms) if others is None else (others[0] + out, others[1] + atoms)


def totals(atoms: Tensor, status: Tensor, system_ptr: Tensor) -> Tensor:
    """Sum over the atoms of each system to [B, 11]: energy, virial row by row, highest status."""
    count = system_ptr.diff().long()
    system = torch.arange(len(count), device=atoms.device).repeat_interleave(count)
    sums = sum_at_receivers(atoms.T.contiguous(), system, len(count))
    worst = torch.zeros(len(count), dtype=status.dtype, device=atoms.device)
    worst = worst.scatter_reduce(0, system, status, "amax")
    energy_and_virial = sums[:, [0, 1, 6, 5, 6, 2, 4, 5, 4, 3]]
    return torch.cat([energy_and_virial, worst[:, None].double()], dim=1)
