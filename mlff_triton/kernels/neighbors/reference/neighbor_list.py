"""Neighbor rows by brute force: every image of every pair of atoms, in plain PyTorch.

Edge ``(i, j, S)`` says that atom ``i`` receives from the image ``S`` of atom ``j``, for

    |pos_i - pos_j - S @ cell| < radius

The definition, edge order and signs are those of `neighbors.graph`; the layout, one row of
``K`` slots an atom, is `NeighborRows`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

MAX_REACH = 127
"""Cells that a shift may reach over in any direction, for it to fit a byte."""


@dataclass(frozen=True)
class NeighborRows:
    """A full, symmetric neighbor list with the same number ``K`` of slots for every atom.

    Atoms are numbered in an order of the list's own, in which neighbors lie close in memory. The
    edges of an atom fill the first slots of its row by ascending ``(j, S)``, with ``j`` in the
    *user's* numbering: the order of a row does not depend on how atoms were sorted. Slots behind
    them point back at themselves: the atom itself as sender, no shift, their own reverse.

    The list is whole only if ``needed <= K`` and ``reach <= MAX_REACH``. Otherwise its indices are
    still in bounds, but edges are missing: build it again with room for ``needed``, or from
    positions wrapped into the cell.

    Attributes
    ----------
    order : int32 [N]
        The user's number of each sorted atom.
    rank : int32 [N]
        The inverse: the sorted number of each of the user's atoms.
    count : int32 [N]
        Slots in use in the row of each sorted atom, at most ``K``.
    senders : int32 [N, K]
        Sorted number of atom ``j``.
    shifts : int32 [N, K]
        Lattice translation of ``j``, a byte a direction: see `unpack_shifts`.
    reverse : int32 [N * K]
        Flat slot of the opposite edge.
    needed : int32 []
        Edges of the atom that has the most.
    reach : int32 []
        The largest component of any shift, or a huge number for a position that is none.
    """

    order: Tensor
    rank: Tensor
    count: Tensor
    senders: Tensor
    shifts: Tensor
    reverse: Tensor
    needed: Tensor
    reach: Tensor

    def to_csr(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Arrays of a `mlff_triton.neighbors.graph.Graph` in the user's numbering.

        Returns
        -------
        row_ptr : int64 [N + 1]
        senders : int64 [E]
        shifts : int64 [E, 3]
        reverse : int64 [E]
        """
        rank = self.rank.long()
        count = self.count[rank].long()
        slots = torch.arange(self.senders.numel(), device=rank.device).view(self.senders.shape)
        used = slots[0] < count[:, None]
        slots = slots[rank][used]
        edge_of_slot = torch.empty_like(self.reverse, dtype=torch.int64)
        edge_of_slot[slots] = torch.arange(len(slots), device=rank.device)
        return (
            torch.cat([count.new_zeros(1), count.cumsum(0)]),
            self.order[self.senders.flatten()[slots]].long(),
            unpack_shifts(self.shifts.flatten()[slots]),
            edge_of_slot[self.reverse[slots]],
        )


def unpack_shifts(packed: Tensor) -> Tensor:
    """Three components from the three low bytes, the first in the lowest, each plus 128.

    Parameters
    ----------
    packed : int32 [...]

    Returns
    -------
    int64 [..., 3]
    """
    return torch.stack([(packed.long() >> bit & 255) - 128 for bit in (0, 8, 16)], dim=-1)


def pack_shifts(shifts: Tensor) -> Tensor:
    """The inverse of `unpack_shifts`: int64 [..., 3] to int32 [...]."""
    x, y, z = (shifts + 128 & 255).unbind(-1)
    return (x | y << 8 | z << 16).int()


def build_rows(
    positions: Tensor,
    cell: Tensor,
    pbc: Tensor,
    batch: Tensor,
    radius: float,
    capacity: int,
    order: Tensor | None = None,
) -> NeighborRows:
    """Find all pairs by trying every image that could matter.

    Arguments and result are those of `kernels.neighbors.neighbor_list.build_rows`; ``order``
    (int32 [N]) prescribes the numbering of the rows, by default the user's own.
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
    return NeighborRows(
        order=order,
        rank=rank,
        count=total[order.long()].clamp(max=capacity).int(),
        senders=rows["senders"].view(n_atoms, capacity),
        shifts=rows["shifts"].view(n_atoms, capacity),
        reverse=rows["reverse"],
        needed=total.max().int(),
        reach=torch.cat([shifts.new_zeros(1), shifts.abs().flatten()]).max().int(),
    )


def _all_pairs(
    positions: Tensor, cell: Tensor, pbc: Tensor, batch: Tensor, radius: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Receivers, senders and shifts of all edges, sorted."""
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
    """An int64 an edge that sorts as (i, j, Sx, Sy, Sz)."""
    x, y, z = (shifts + 128).unbind(-1)
    return (receivers * n_atoms + senders) << 24 | x << 16 | y << 8 | z
