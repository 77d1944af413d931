"""Padded neighbor matrix: a neighbor list with the same number of slots for every atom."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

MAX_REACH = 127
"""Cells that a shift may reach over in any direction, for it to fit a byte."""


@dataclass(frozen=True)
class NeighborMatrix:
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
