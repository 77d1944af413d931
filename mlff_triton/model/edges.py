"""Geometry of the edges of a neighbor list, in the form that the layers of TensorNet take."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from mlff_triton.model.irreps import PART_OF_COMPONENT
from mlff_triton.neighbors.graph import Graph


@dataclass(frozen=True)
class Edges:
    """Geometry of the edges.

    Functions of the distance are stored once per pair. Models with self-loops have an additional
    first row for distance 0: P + 1 rows instead of P.

    Attributes
    ----------
    graph : Graph
        Neighbor list.
    directions : [E, 3]
        Unit vectors from sender to receiver.
    distances : [P]
        Distance of each pair in Å.
    basis : [P (+ 1), num_rbf]
        Radial basis at each distance.
    cutoff : [P (+ 1)]
        Cosine cutoff at each distance.
    row : int64 [E]
        Row of each edge in functions of the distance.
    n_near : int64 [], optional
        Number of edges that matter, if the others follow them: see `Graph.with_first`.
    """

    graph: Graph
    directions: Tensor
    distances: Tensor
    basis: Tensor
    cutoff: Tensor
    row: Tensor
    n_near: Tensor | None = None

    def sum_at_receivers(self, messages: Tensor) -> Tensor:
        """Sum messages [E, F] at their receivers: [N, F]."""
        zeros = messages.new_zeros(self.graph.n_atoms, messages.shape[1])
        return zeros.index_add(0, self.graph.receivers, messages)

    def pass_messages(self, y: Tensor, factors: list[Tensor]) -> Tensor:
        """Compute ``M_i = sum_j f_k(d_ij) y_j``, one component at a time to stay in the cache.

        Parameters
        ----------
        y : [9, N, F]
            Tensors of the senders.
        factors : 3 of [E, F]
            Factors ``f_k`` of the three parts for each edge.

        Returns
        -------
        [9, N, F]
        """
        components = zip(y, PART_OF_COMPONENT, strict=True)
        return torch.stack(
            [
                self.sum_at_receivers(c.index_select(0, self.graph.senders) * factors[k])
                for c, k in components
            ]
        )

    @property
    def has_loops(self) -> bool:
        """True if there is a row for the edge of an atom to itself."""
        return len(self.basis) > len(self.distances)

    @property
    def near_rows(self) -> Tensor | None:
        """Number of leading rows that matter in functions of the distance; None for all."""
        return None if self.n_near is None else self.n_near // 2 + self.has_loops

    @cached_property
    def looped(self) -> LoopedEdges:
        """The same edges in the form that operators take, with self-loops if they have a row."""
        graph = self.graph
        if not self.has_loops:
            ends = graph.receivers, graph.senders
            return LoopedEdges(graph.row_ptr, *ends, graph.reverse, self.row + 1, self.directions)
        atoms = torch.arange(graph.n_atoms, device=graph.senders.device)
        loops = graph.row_ptr[1:] + atoms  # at the end of each row
        others = torch.arange(graph.n_edges, device=atoms.device)  # shifted by the loops before
        others = others + torch.searchsorted(graph.row_ptr, others, right=True) - 1
        n_edges = graph.n_edges + graph.n_atoms

        def join(of_edges: Tensor, of_loops: Tensor) -> Tensor:
            both = of_edges.new_zeros(n_edges, *of_edges.shape[1:])
            return both.index_copy(0, others, of_edges).index_copy(0, loops, of_loops)

        return LoopedEdges(
            row_ptr=graph.row_ptr + torch.arange(graph.n_atoms + 1, device=atoms.device),
            receivers=join(graph.receivers, atoms),
            senders=join(graph.senders, atoms),
            reverse=join(others.index_select(0, graph.reverse), loops),
            pairs=join(self.row, torch.zeros_like(atoms)),
            directions=join(self.directions, self.directions.new_zeros(graph.n_atoms, 3)),
        )


@dataclass(frozen=True)
class LoopedEdges:
    """Edges, with or without self-loops, in the form that `mlff_triton.kernels.ops` take.

    Attributes
    ----------
    row_ptr : int64 [N + 1]
        Row pointers of the receivers.
    receivers, senders : int64 [E]
        Both atoms of each edge.
    reverse : int64 [E]
        Index of the opposite edge; that of a self-loop is its own.
    pairs : int64 [E]
        Pair of each edge, from 1 on; 0 for self-loops.
    directions : [E, 3]
        Unit vectors from sender to receiver; zero for self-loops.
    """

    row_ptr: Tensor
    receivers: Tensor
    senders: Tensor
    reverse: Tensor
    pairs: Tensor
    directions: Tensor

    @property
    def graph(self) -> tuple[Tensor, Tensor, Tensor]:
        """Row pointers, senders and reverse indices, the arguments of message passing."""
        return self.row_ptr, self.senders, self.reverse

    @property
    def pair_graph(self) -> tuple[Tensor, Tensor, Tensor]:
        """Row pointers, senders and pairs, the arguments of message passing with pairs."""
        return self.row_ptr, self.senders, self.pairs


def half_to_each(energies: Tensor, graph: Graph) -> Tensor:
    """Give half of the energy of each pair [P] to each of its atoms: [N]."""
    first, _ = graph.pairs
    ends = torch.cat([graph.receivers[first], graph.senders[first]])
    zeros = energies.new_zeros(graph.n_atoms)
    return zeros.index_add(0, ends, torch.cat([energies, energies]) / 2)
