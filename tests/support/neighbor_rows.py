"""Rows of a padded neighbor matrix as the graph that they hold."""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.kernels.types.neighbor_matrix import NeighborMatrix, unpack_shifts


def to_csr(rows: NeighborMatrix) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the arrays of a `Graph` in the user's numbering."""
    rank = rows.rank.long()
    count = rows.count[rank].long()
    slots = torch.arange(rows.senders.numel(), device=rank.device).view(rows.senders.shape)
    used = slots[0] < count[:, None]
    slots = slots[rank][used]
    edge_of_slot = torch.empty_like(rows.reverse, dtype=torch.int64)
    edge_of_slot[slots] = torch.arange(len(slots), device=rank.device)
    return (
        torch.cat([count.new_zeros(1), count.cumsum(0)]),
        rows.order[rows.senders.flatten()[slots]].long(),
        unpack_shifts(rows.shifts.flatten()[slots]),
        edge_of_slot[rows.reverse[slots]],
    )
