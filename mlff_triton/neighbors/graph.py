"""The neighbor graph: a full, symmetric, immutable list in CSR form with reverse-edge indices.

Edge ``e = (i, j, S)``: atom ``i`` receives from the image ``S`` of atom ``j`` and

    r_e = pos_i - pos_j - S @ cell            d_e = |r_e|

Edges are sorted by ``(i, j, S)``. The opposite ``(j, i, -S)`` of every edge is also present, at
``reverse[e]``, so that sums over either end of an edge need no atomics.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property

import torch
from torch import Tensor

from mlff_triton._common.torch_settings import with_own_settings
from mlff_triton.errors import InputError


@dataclass(frozen=True)
class Graph:
    """A neighbor list.

    Attributes
    ----------
    row_ptr : int64 [N + 1]
        Row pointers: the edges of receiver ``i`` are ``row_ptr[i]:row_ptr[i + 1]``.
    senders : int64 [E]
        Atom ``j`` of each edge.
    shifts : int64 [E, 3]
        Lattice translation ``S`` of ``j``; zero without periodic boundaries.
    reverse : int64 [E]
        Index of the opposite edge, an involution without fixed points.
    """

    row_ptr: Tensor
    senders: Tensor
    shifts: Tensor
    reverse: Tensor

    @classmethod
    def from_pairs(cls, receivers: Tensor, senders: Tensor, shifts: Tensor, n_atoms: int) -> Graph:
        """Sort a full list of pairs and find the opposite of each.

        Parameters
        ----------
        receivers, senders : int64 [E]
            Atoms ``i`` and ``j`` of every pair, in both directions and any order.
        shifts : int64 [E, 3]
            Lattice translation of ``j`` in each pair.
        n_atoms : int
            Number of atoms, including isolated ones.

        Returns
        -------
        Graph

        Raises
        ------
        InputError
            If the list is not symmetric, repeats a pair, contains an atom that is its own neighbor,
            or refers to an atom that does not exist.
        """
        if len(receivers) and not 0 <= int(senders.min()) <= int(senders.max()) < n_atoms:
            raise InputError(f"the pairs refer to atoms outside 0..{n_atoms - 1}")
        key = _edge_key(receivers, senders, shifts, n_atoms)
        key, order = torch.sort(key)
        receivers, senders, shifts = receivers[order], senders[order], shifts[order]
        opposite, reverse_rank = torch.sort(_edge_key(senders, receivers, -shifts, n_atoms))
        if not torch.equal(key, opposite):
            raise InputError("the pairs are not symmetric: give each in both directions")
        if (key[1:] == key[:-1]).any():
            raise InputError("a pair occurs twice: give each direction once")
        reverse = torch.empty_like(reverse_rank)
        reverse[reverse_rank] = torch.arange(len(reverse), device=reverse.device)
        if (reverse_rank == torch.arange(len(reverse), device=reverse.device)).any():
            raise InputError("an atom is paired with itself: leave that pair out")
        counts = torch.bincount(receivers, minlength=n_atoms)
        row_ptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        return cls(row_ptr, senders, shifts, reverse)

    @property
    def n_atoms(self) -> int:
        """Number of atoms N."""
        return len(self.row_ptr) - 1

    @property
    def n_edges(self) -> int:
        """Number of directed edges E."""
        return len(self.senders)

    @cached_property
    @with_own_settings
    def receivers(self) -> Tensor:
        """Atom ``i`` of each edge, int64 [E], which sends the opposite edge."""
        return self.senders.index_select(0, self.reverse)

    @cached_property
    @with_own_settings
    def pairs(self) -> tuple[Tensor, Tensor]:
        """One edge of each undirected pair, int64 [E / 2], and the pair of each edge, int64 [E].

        Functions of the distance need to be computed only once per pair.
        """
        edges = torch.arange(self.n_edges, device=self.senders.device)
        is_first = edges < self.reverse
        rank = is_first.cumsum(0) - 1
        n_pairs = self.n_edges // 2
        slots = torch.where(is_first, rank, n_pairs)  # a mask would wait for a GPU
        first = edges.new_empty(n_pairs + 1).scatter_(0, slots, edges)[:n_pairs]
        return first, rank[torch.minimum(edges, self.reverse)]

    def vectors(self, positions: Tensor, cell: Tensor | None, batch: Tensor | None) -> Tensor:
        """Compute the edge vectors ``r_e`` in Å.

        Parameters
        ----------
        positions : [N, 3]
            Atom positions in Å.
        cell : [B, 3, 3] or None
            Lattice vectors (rows) of each system in Å; None without periodic boundaries.
        batch : int64 [N] or None
            System of each atom; None for one system.

        Returns
        -------
        [E, 3]
        """
        delta = positions[self.receivers] - positions[self.senders]
        if cell is None:
            return delta
        shifts = self.shifts.to(positions.dtype)
        if batch is None:
            return delta - shifts @ cell[0]
        return delta - (shifts[:, None, :] @ cell[batch[self.receivers]])[:, 0]

    def select(self, keep: Tensor) -> Graph:
        """Keep the edges where ``keep``, bool [E], is True; it must be equal for opposite edges."""
        index = keep.cumsum(0) - 1
        counts = torch.cat([index.new_zeros(1), index + 1])
        return Graph(
            row_ptr=counts[self.row_ptr],
            senders=self.senders[keep],
            shifts=self.shifts[keep],
            reverse=index[self.reverse[keep]],
        )

    @with_own_settings
    def with_first(self, is_first: Tensor) -> tuple[Graph, Tensor]:
        """Move some edges to the front. Unlike `select`, it never waits for a GPU.

        Parameters
        ----------
        is_first : bool [E]
            True for these edges. It must be equal for opposite edges.

        Returns
        -------
        Graph
            The same edges in another order. The others begin at ``row_ptr[N]``, so they belong to
            no row.
        order : int64 [E]
            Former index of each edge.
        """
        edges = torch.arange(self.n_edges, device=self.senders.device)
        count = is_first.cumsum(0)
        place = torch.where(is_first, count - 1, count[-1:] + edges - count)
        order = torch.empty_like(edges).scatter_(0, place, edges)
        graph = Graph(
            row_ptr=torch.cat([count.new_zeros(1), count])[self.row_ptr],
            senders=self.senders[order],
            shifts=self.shifts[order],
            reverse=place[self.reverse[order]],
        )
        return graph, order

    def map(self, function: Callable[[Tensor], Tensor]) -> Graph:
        """Apply a function to every tensor; return this graph itself if no tensor changes."""
        tensors = {field.name: getattr(self, field.name) for field in fields(self)}
        mapped = {name: function(tensor) for name, tensor in tensors.items()}
        return self if all(mapped[name] is tensors[name] for name in mapped) else Graph(**mapped)

    def to(self, device: torch.device | str) -> Graph:
        """Copy the graph to a device."""
        return self.map(lambda tensor: tensor.to(device))


def concatenate(graphs: list[Graph]) -> Graph:
    """Join the graphs of several systems, with atoms and edges numbered consecutively."""
    n_atoms = torch.tensor([0] + [g.n_atoms for g in graphs]).cumsum(0).tolist()
    n_edges = torch.tensor([0] + [g.n_edges for g in graphs]).cumsum(0).tolist()
    return Graph(
        row_ptr=torch.cat(
            [graphs[0].row_ptr[:1]]
            + [g.row_ptr[1:] + e for g, e in zip(graphs, n_edges, strict=False)]
        ),
        senders=torch.cat([g.senders + n for g, n in zip(graphs, n_atoms, strict=False)]),
        shifts=torch.cat([g.shifts for g in graphs]),
        reverse=torch.cat([g.reverse + e for g, e in zip(graphs, n_edges, strict=False)]),
    )


def _edge_key(receivers: Tensor, senders: Tensor, shifts: Tensor, n_atoms: int) -> Tensor:
    """Encode each directed edge as an int64 that sorts like (i, j, Sx, Sy, Sz)."""
    if not len(receivers):
        return receivers
    reach = int(shifts.abs().max())
    base = 2 * reach + 1
    if n_atoms**2 * base**3 > 2**63 - 1:
        raise InputError(
            f"pairs span up to {reach} cells: wrap the atoms into the cell; a simulation may have "
            "blown up"
        )
    key = receivers * n_atoms + senders
    for axis in range(3):
        key = key * base + shifts[:, axis] + reach
    return key
