"""The operator cases: inputs, our kernel, and the PyTorch code that it replaces.

The published micro-benchmarks specify "1K to 64K atoms" and nothing else. Here there is one vector
or tensor per atom, tensors and factors have F = 128 channels, and messages come from a box at the
density of water with a cutoff of 5 Å, about 53 neighbors per atom.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.kernels import edge_messages, radial_messages
from benchmarks.systems.systems import random_box
from mlff_triton.neighbors.graph import Graph

CHANNELS = 128
CUTOFF = 5.0
SIZES = (1024, 4096, 16384, 65536)

Inputs = tuple[Tensor, ...]
Function = Callable[..., Any]


@dataclass(frozen=True)
class Operator:
    """An operator, ours and in PyTorch.

    Attributes
    ----------
    name : str
        Name in the results.
    inputs : callable
        Return the arguments, given a `Source`.
    ours : callable
        Our kernel, imported at its first call.
    eager : callable
        Its equivalent in PyTorch.
    differentiable : bool
        If True, gradients are measured too.
    has_edges : bool
        If True, the operator works on the edges of `Source.graph`.
    """

    name: str
    inputs: Callable[[Source], Inputs]
    ours: Function
    eager: Function
    differentiable: bool = True
    has_edges: bool = False


def kernel(stem: str, name: str | None = None, **options: Any) -> Function:
    """Return a function of ``mlff_triton.kernels.ops``, imported at its first call."""
    return partial(_call, f"mlff_triton.kernels.ops.{stem}", name or stem, **options)


def reference(stem: str, name: str | None = None, **options: Any) -> Function:
    """Return the reference of such a function, in plain PyTorch."""
    return partial(_call, f"mlff_triton.kernels.ops.reference.{stem}", name or stem, **options)


def _call(module: str, name: str, *inputs: Tensor, **options: Any) -> Any:
    return getattr(import_module(module), name)(*inputs, **options)


# The operations of TensorNet's published PyTorch code.


def symmetric_eager(v: Tensor) -> Tensor:
    """Return symmetric traceless tensors [N, 3, 3] of vectors [N, 3]."""
    outer = v[:, :, None] * v[:, None, :]
    trace = outer.diagonal(dim1=1, dim2=2).mean(-1)
    identity = trace[:, None, None] * torch.eye(3, dtype=v.dtype, device=v.device)
    return 0.5 * (outer + outer.transpose(1, 2)) - identity


def skew_eager(v: Tensor) -> Tensor:
    """Return skew tensors [N, 3, 3] of vectors [N, 3]."""
    x, y, z = v.unbind(1)
    zero = torch.zeros_like(x)
    return torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], 1).view(-1, 3, 3)


def scaled_eager(tensors: Function, v: Tensor, factors: Tensor) -> Tensor:
    """Multiply tensors [N, 3, 3] of vectors [N, 3] by factors [N, F], to [N, 3, 3, F]."""
    return tensors(v)[..., None] * factors[:, None, None]


def messages_eager(
    y: Tensor, factors: Tensor, row_ptr: Tensor, senders: Tensor, _reverse: Tensor
) -> Tensor:
    """Sum messages of full tensors [N, 3, 3, F], with one factor per edge and channel."""
    atoms = torch.arange(len(y), device=y.device)
    receivers = atoms.repeat_interleave(row_ptr.diff(), output_size=len(senders))
    return torch.zeros_like(y).index_add(0, receivers, factors * y.index_select(0, senders))


def attention_ours(q: Tensor, k: Tensor, v: Tensor, row_ptr: Tensor) -> Tensor:
    """Attend within sequences of equal length."""
    from mlff_triton.kernels.ops.attention import attention

    return attention(q, k, v, row_ptr, len(q) // (len(row_ptr) - 1))


def attention_eager(q: Tensor, k: Tensor, v: Tensor, row_ptr: Tensor) -> Tensor:
    """Attend with PyTorch's own operator, which has a sequence axis."""
    sequences = (x.unflatten(0, (len(row_ptr) - 1, -1)).transpose(1, 2) for x in (q, k, v))
    return scaled_dot_product_attention(*sequences).transpose(1, 2).flatten(0, 1)


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


PUBLISHED: tuple[Operator, ...] = (
    Operator(
        "unscaled_vector_to_symmetric",
        Source.vectors,
        kernel("vector_to_tensor", "vector_to_symmetric"),
        symmetric_eager,
    ),
    Operator(
        "unscaled_vector_to_skew",
        Source.vectors,
        kernel("vector_to_tensor", "vector_to_skew"),
        skew_eager,
    ),
    Operator(
        "decompose_tensor",
        Source.full,
        kernel("decomposition", "decompose_tensor"),
        reference("decomposition", "decompose_tensor"),
    ),
    Operator(
        "message_passing",
        Source.full_messages,
        kernel("message_passing"),
        messages_eager,
        has_edges=True,
    ),
    Operator(
        "radial_message_passing",
        radial_messages.inputs,
        radial_messages.ours,
        radial_messages.eager,
        differentiable=False,
        has_edges=True,
    ),
)
FURTHER: tuple[Operator, ...] = (
    Operator(
        "vector_to_symmetric",
        Source.scaled_vectors,
        kernel("vector_to_tensor", "vector_to_symmetric"),
        partial(scaled_eager, symmetric_eager),
    ),
    Operator(
        "vector_to_skew",
        Source.scaled_vectors,
        kernel("vector_to_tensor", "vector_to_skew"),
        partial(scaled_eager, skew_eager),
    ),
    Operator(
        "message_passing_packed",
        Source.packed_messages,
        kernel("message_passing"),
        reference("message_passing"),
        has_edges=True,
    ),
    Operator(
        "decompose",
        Source.full,
        kernel("decomposition", "decompose"),
        reference("decomposition", "decompose"),
    ),
    Operator(
        "compose",
        Source.packed,
        kernel("decomposition", "compose"),
        reference("decomposition", "compose"),
    ),
    Operator(
        "tensor_product", Source.two_packed, kernel("tensor_product"), reference("tensor_product")
    ),
    Operator("tensor_update", Source.update, kernel("tensor_update"), reference("tensor_update")),
    Operator(
        "normalized_tensors",
        Source.packed,
        kernel("normalized_tensors"),
        reference("normalized_tensors"),
    ),
    Operator(
        "scaled_tensors",
        Source.tensors_to_scale,
        kernel("scaled_tensors"),
        reference("scaled_tensors"),
    ),
    Operator(
        "channel_maps", Source.tensors_to_map, kernel("channel_maps"), reference("channel_maps")
    ),
    Operator(
        "pair_messages",
        Source.pair_messages,
        kernel("pair_messages"),
        reference("pair_messages"),
        has_edges=True,
    ),
    Operator(
        "pair_embedding",
        Source.pair_embedding,
        kernel("pair_embedding"),
        reference("pair_embedding"),
        has_edges=True,
    ),
    Operator(
        "edge_messages",
        edge_messages.inputs,
        edge_messages.ours,
        edge_messages.eager,
        differentiable=False,
        has_edges=True,
    ),
    Operator("irrep_norms", Source.packed, kernel("irrep_norms"), reference("irrep_norms")),
    Operator("layer_norm", Source.rows_to_normalize, kernel("layer_norm"), reference("layer_norm")),
    Operator(
        "linear_silu",
        Source.rows_to_map,
        kernel("linear", activation="silu"),
        reference("linear", activation="silu"),
    ),
    Operator("attention", Source.sequences, attention_ours, attention_eager),
    Operator("segment_sum", Source.segments, kernel("segment_sum"), reference("segment_sum")),
)
OPERATORS = PUBLISHED + FURTHER
