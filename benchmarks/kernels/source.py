"""Random inputs of operators.

There is one vector or tensor per atom, tensors and factors have F = 128 channels, and messages come
from a box at the density of water with a cutoff of 5 Å, about 53 neighbors per atom.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from benchmarks.systems.systems import random_box
from mlff_triton.neighbors.graph import Graph

CHANNELS = 128
CUTOFF = 5.0

Inputs = tuple[Tensor, ...]


class Source:
    """Random float32 inputs for a number of atoms.

    Parameters
    ----------
    n_atoms : int
        Number of atoms N.
    device : torch.device
        Device of the inputs.
    """

    def __init__(self, n_atoms: int, device: torch.device) -> None:
        self.n_atoms, self.device = n_atoms, device
        self._generator = torch.Generator(device).manual_seed(0)

    def random(self, *shape: int) -> Tensor:
        """Return standard normal numbers."""
        return torch.randn(shape, generator=self._generator, device=self.device)

    @property
    def graph(self) -> Graph:
        """Neighbors of the atoms of a random box."""
        return _graph(self.n_atoms).to(self.device)

    def vectors(self) -> Inputs:
        """Return vectors [N, 3]."""
        return (self.random(self.n_atoms, 3),)

    def scaled_vectors(self) -> Inputs:
        """Return vectors [N, 3] and factors [N, F]."""
        return (*self.vectors(), self.random(self.n_atoms, CHANNELS))

    def full(self) -> Inputs:
        """Return tensors [N, 3, 3, F]."""
        return (self.random(self.n_atoms, 3, 3, CHANNELS),)

    def packed(self) -> Inputs:
        """Return packed tensors [9, N, F]."""
        return (self.random(9, self.n_atoms, CHANNELS),)

    def two_packed(self) -> Inputs:
        """Return two packed tensors [9, N, F]."""
        return (*self.packed(), *self.packed())

    def full_messages(self) -> Inputs:
        """Return tensors [N, 3, 3, F], factors [E, 1, 1, F] and neighbors."""
        graph = self.graph
        factors = self.random(graph.n_edges, 1, 1, CHANNELS)
        return (*self.full(), factors, graph.row_ptr, graph.senders, graph.reverse)

    def update(self) -> Inputs:
        """Return tensors and their changes [9, N, F], and charge factors [N]."""
        return (*self.two_packed(), self.random(self.n_atoms))

    def tensors_to_scale(self) -> Inputs:
        """Return packed tensors [9, N, F] and scales [N, 3, F]."""
        return (*self.packed(), self.random(self.n_atoms, 3, CHANNELS))

    def tensors_to_map(self) -> Inputs:
        """Return packed tensors [9, N, F] and weights [3, F, F]."""
        return (*self.packed(), self.random(3, CHANNELS, CHANNELS) / CHANNELS**0.5)

    def rows_to_normalize(self) -> Inputs:
        """Return rows [N, 3 F], weights and biases [3 F]."""
        width = 3 * CHANNELS
        return self.random(self.n_atoms, width), self.random(width), self.random(width)

    def rows_to_map(self) -> Inputs:
        """Return rows [N, F], weights [2 F, F] and biases [2 F]."""
        weight = self.random(2 * CHANNELS, CHANNELS) / CHANNELS**0.5
        return self.random(self.n_atoms, CHANNELS), weight, self.random(2 * CHANNELS)

    def segments(self) -> Inputs:
        """Return rows [N, F] and the bounds of segments of up to 21 rows."""
        starts = torch.arange(0, self.n_atoms + 21, 21, device=self.device)
        return self.random(self.n_atoms, CHANNELS), starts.clamp(max=self.n_atoms)

    def sequences(self) -> Inputs:
        """Return queries, keys and values [T, 20, 16], in sequences of 512 if 512 divides T."""
        length = 512 if self.n_atoms % 512 == 0 else self.n_atoms
        row_ptr = torch.arange(0, self.n_atoms + 1, length, device=self.device)
        return *(self.random(self.n_atoms, 20, 16) for _ in "qkv"), row_ptr

    def packed_messages(self) -> Inputs:
        """Return packed tensors [9, N, F], factors [E, 3, F] and neighbors."""
        graph = self.graph
        factors = self.random(graph.n_edges, 3, CHANNELS)
        return (*self.packed(), factors, graph.row_ptr, graph.senders, graph.reverse)

    def pair_messages(self) -> Inputs:
        """Return packed tensors [9, N, F], factors of pairs [P, 3, F], neighbors and pairs."""
        graph, pairs = self.graph, self._pairs()
        factors = self.random(1 + graph.n_edges // 2, 3, CHANNELS)
        return (*self.packed(), factors, graph.row_ptr, graph.senders, pairs)

    def pair_embedding(self) -> Inputs:
        """Return directions, factors of pairs, terms of atoms, neighbors and pairs."""
        graph, pairs = self.graph, self._pairs()
        directions = torch.nn.functional.normalize(self.random(graph.n_edges, 3))
        factors = self.random(1 + graph.n_edges // 2, 3, CHANNELS)
        atoms = self.random(self.n_atoms, CHANNELS), self.random(self.n_atoms, CHANNELS)
        neighbors = graph.row_ptr, graph.senders, pairs, graph.reverse
        return directions, factors, *atoms, *neighbors

    def _pairs(self) -> Tensor:
        """Return the pair of each edge, 0 for those of an atom and its own image."""
        graph = self.graph
        edges = torch.arange(graph.n_edges, device=self.device)
        pairs = (edges < graph.reverse).cumsum(0)
        pairs = pairs.where(edges < graph.reverse, pairs[graph.reverse])
        return pairs.masked_fill(graph.senders == graph.senders[graph.reverse], 0)


@lru_cache(maxsize=2)
def _graph(n_atoms: int) -> Graph:
    return random_box(n_atoms).graph(CUTOFF)
