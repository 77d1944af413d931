"""Padded neighbor matrix: a neighbor list with the same number of slots for each atom."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

MAX_REACH = 127
"""Largest component of a shift that fits in one byte."""


@dataclass(frozen=True)
class NeighborMatrix:
    """Full, symmetric neighbor list with ``K`` slots for each atom.

    Atoms are sorted so that neighbors lie close in memory. The edges of an atom fill the first
    slots of its row by ascending ``(j, S)``, with ``j`` in the *user's* numbering, so the order of
    a row does not depend on how the atoms were sorted. Unused slots point to themselves: their
    sender is the atom itself, their shift is zero, and their reverse is their own index.

    The list is complete only if ``needed <= K`` and ``reach <= MAX_REACH``. Otherwise all indices
    are within bounds but edges are missing. Build it again with ``K >= needed``, or from positions
    wrapped into the cell.

    Attributes
    ----------
    order : int32 [N]
        User's index of each sorted atom.
    rank : int32 [N]
        Sorted index of each of the user's atoms: the inverse of ``order``.
    begin : int32 [N]
        First slot of the row of each sorted atom: multiples of ``K``. They ascend, unless atoms
        have been sorted again after their rows were built.
    count : int32 [N]
        Used slots in the row of each sorted atom, at most ``K``.
    senders : int32 [N, K]
        Sorted index of atom ``j``.
    shifts : int32 [N, K]
        Lattice translation of ``j``, one byte per direction: see `unpack_shifts`.
    reverse : int32 [N * K]
        Flat index of the slot of the opposite edge.
    needed : int32 []
        Largest number of edges of any atom.
    reach : int32 []
        Largest component of any shift; a huge number if a position is not finite.
    positions : float64 [N, 3]
        Positions when the matrix was built, in the user's order, Å.
    inverse : float64 [B, 3, 3]
        Inverse of each system's cell at that time, 1/Å.
    """

    order: Tensor
    rank: Tensor
    begin: Tensor
    count: Tensor
    senders: Tensor
    shifts: Tensor
    reverse: Tensor
    needed: Tensor
    reach: Tensor
    positions: Tensor
    inverse: Tensor

    @classmethod
    def empty(
        cls, n_atoms: int, n_systems: int, capacity: int, device: torch.device
    ) -> NeighborMatrix:
        """Allocate the tensors of a matrix."""

        def integers(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=torch.int32, device=device)

        def floats(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=torch.float64, device=device)

        return cls(
            order=integers(n_atoms),
            rank=integers(n_atoms),
            begin=torch.arange(n_atoms, dtype=torch.int32, device=device) * capacity,
            count=integers(n_atoms),
            senders=integers(n_atoms, capacity),
            shifts=integers(n_atoms, capacity),
            reverse=integers(n_atoms * capacity),
            needed=integers(),
            reach=integers(),
            positions=floats(n_atoms, 3),
            inverse=floats(n_systems, 3, 3),
        )

    def shorter(self, capacity: int) -> NeighborMatrix:
        """Allocate a matrix of the same atoms in the same order, for another radius."""
        n_atoms, n_systems, device = len(self.order), len(self.inverse), self.order.device
        new = NeighborMatrix.empty(n_atoms, n_systems, capacity, device)
        shared = ("order", "rank", "positions", "inverse")
        return replace(new, **{name: getattr(self, name) for name in shared})

    @property
    def capacity(self) -> int:
        """Slots per atom."""
        return self.senders.shape[1]


def unpack_shifts(packed: Tensor) -> Tensor:
    """Unpack shifts from three bytes, the first component in the lowest byte, each plus 128.

    Parameters
    ----------
    packed : int32 [...]

    Returns
    -------
    int64 [..., 3]
    """
    return torch.stack([(packed.long() >> bit & 255) - 128 for bit in (0, 8, 16)], dim=-1)


def pack_shifts(shifts: Tensor) -> Tensor:
    """Pack shifts, int64 [..., 3], into int32 [...]: the inverse of `unpack_shifts`."""
    x, y, z = (shifts + 128 & 255).unbind(-1)
    return (x | y << 8 | z << 16).int()
