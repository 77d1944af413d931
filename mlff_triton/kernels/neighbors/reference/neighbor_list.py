"""Neighbor matrices by brute force over all images of all pairs, in plain PyTorch.

Edge ``(i, j, S)`` says that atom ``i`` receives from the image ``S`` of atom ``j``, for

    |pos_i - pos_j - S @ cell| < radius

Edges, their order and their signs are as in `mlff_triton.neighbors.graph`. The layout is
`NeighborMatrix`, with one row of ``K`` slots per atom.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.kernels.types.neighbor_matrix import NeighborMatrix, pack_shifts


def build_rows(
    positions: Tensor,
    cell: Tensor,
    pbc: Tensor,
    batch: Tensor,
    radius: float,
    capacity: int,
    order: Tensor | None = None,
) -> NeighborMatrix:
    """Find all pairs closer than a radius by testing all possible images.

    Arguments and result are those of `mlff_triton.kernels.neighbors.neighbor_list.build_rows`,
    apart from ``order``, int32 [N]: the user's index of each row, by default the user's order.
    """
    n_atoms, device = len(positions), positions.device
    order = torch.arange(n_atoms, device=device).int() if order is None else order
    rank = torch.empty_like(order).scatter_(0, order.long(), torch.arange(n_atoms).to(order))
    receivers, senders, shifts = _all_pairs(positions, cell, pbc, batch, radius)

    total = torch.bincount(receivers, minlength=n_atoms)
    slot = torch.arange(len(receivers), device=device) - (total.cumsum(0) - total)[receivers]
    key = _sort_key(receivers, senders, shifts, n_atoms)
    opposite = torch.searchsorted(key, _sort_key(senders, receivers, -shifts, n_atoms))
    kept = slot < capacity
    own = rank[receivers].long() * capacity + slot

    index = torch.arange(n_atoms * capacity, device=device).int()
    rows = {
        "senders": index // capacity,
        "shifts": pack_shifts(shifts.new_zeros(len(index), 3)),
        "reverse": index.clone(),
    }
    rows["senders"][own[kept]] = rank[senders[kept]]
    rows["shifts"][own[kept]] = pack_shifts(shifts[kept])
    rows["reverse"][own[kept]] = own[opposite[kept]].int()
    return NeighborMatrix(
        order=order,
        rank=rank,
        begin=index[::capacity].clone(),
        count=total[order.long()].clamp(max=capacity).int(),
        senders=rows["senders"].view(n_atoms, capacity),
        shifts=rows["shifts"].view(n_atoms, capacity),
        reverse=rows["reverse"],
        needed=total.max().int(),
        reach=torch.cat([shifts.new_zeros(1), shifts.abs().flatten()]).max().int(),
        positions=positions.clone(),
        inverse=torch.linalg.inv(cell).contiguous(),
    )


def _all_pairs(
    positions: Tensor, cell: Tensor, pbc: Tensor, batch: Tensor, radius: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return receivers, senders and shifts of all edges, sorted."""
    found = []
    for system, (vectors, periodic) in enumerate(zip(cell, pbc, strict=True)):
        atoms = (batch == system).nonzero()[:, 0]
        if not len(atoms):
            continue
        inverse = torch.linalg.inv(vectors)
        home = torch.floor(positions[atoms] @ inverse).long() * periodic
        farthest = (radius * inverse.norm(dim=0) + 1).ceil().long() * periodic
        sides = [torch.arange(-m, m + 1) for m in farthest.tolist()]
        images = torch.cartesian_prod(*sides).to(batch)
        shifts = home[:, None, None] - home[:, None] + images
        delta = positions[atoms][:, None] - positions[atoms]
        vector = delta[:, :, None] - shifts.to(vectors) @ vectors
        near = vector.square().sum(-1) < radius**2
        near &= (atoms[:, None] != atoms)[:, :, None] | shifts.any(-1)
        i, j, image = near.nonzero().unbind(1)
        found.append((atoms[i], atoms[j], shifts[i, j, image]))
    receivers, senders, shifts = (torch.cat(parts) for parts in zip(*found, strict=True))
    return receivers, senders, shifts


def _sort_key(receivers: Tensor, senders: Tensor, shifts: Tensor, n_atoms: int) -> Tensor:
    """Return an int64 key per edge that sorts like (i, j, Sx, Sy, Sz)."""
    x, y, z = (shifts + 128).unbind(-1)
    return (receivers * n_atoms + senders) << 24 | x << 16 | y << 8 | z
