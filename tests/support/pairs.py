"""Random neighbor lists with the pair of each edge, for operators on pairs of atoms."""

from __future__ import annotations

import torch
from torch import Tensor


def random_pairs(n_atoms: int, device: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return row pointers, senders, pairs and reverse edges; only half of the atoms have loops.

    Each atom has about two neighbors, and the last one has neither neighbors nor a loop.
    """
    generator = torch.Generator().manual_seed(n_atoms)
    linked = torch.rand(n_atoms, n_atoms, generator=generator) < 1 / max(n_atoms, 1)
    linked = linked | linked.T
    linked[:1, 1:2] = linked[1:2, :1] = True
    linked.diagonal()[::2] = True
    linked[-1:] = linked[:, -1:] = False
    receivers, senders = linked.nonzero(as_tuple=True)
    edge = torch.zeros(n_atoms, n_atoms, dtype=torch.int64)
    edge[receivers, senders] = torch.arange(len(senders))
    first = senders > receivers
    pairs = torch.where(first, first.cumsum(0), 0)
    reverse = edge[senders, receivers]
    pairs = torch.where(senders < receivers, pairs[reverse], pairs)
    row_ptr = torch.searchsorted(receivers, torch.arange(n_atoms + 1))
    return tuple(index.to(device) for index in (row_ptr, senders, pairs, reverse))
