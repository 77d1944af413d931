"""Every operator case, once: inputs, our kernel, and what PyTorch users have instead.

The published micro-benchmarks say "1K to 64K atoms" and no more. Here vectors and tensors are one
an atom, tensors and factors have F = 128 channels, and messages come from a box at the density of
water, 5 Å, about 53 neighbors an atom.
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

from benchmarks.kernels import radial_messages
from benchmarks.systems.systems import random_box
from mlff_triton.neighbors.graph import Graph

CHANNELS = 128
CUTOFF = 5.0
SIZES = (1024, 4096, 16384, 65536)

Inputs = tuple[Tensor, ...]
Function = Callable[..., Any]


@dataclass(frozen=True)
class Operator:
    """One operator.

    Attributes
    ----------
    name : str
        As in the results.
    inputs : callable
        Makes the arguments, as the methods of `Source` do.
    ours : callable
        The kernel; imported when it is first called.
    eager : callable
        The same in PyTorch.
    differentiable : bool
        Whether there are gradients to measure.
    has_edges : bool
        Whether it works on the edges of `Source.graph`.
    """

    name: str
    inputs: Callable[[Source], Inputs]
    ours: Function
    eager: Function
    differentiable: bool = True
    has_edges: bool = False


def kernel(stem: str, name: str | None = None, **options: Any) -> Function:
    """A public function of ``mlff_triton.kernels``, imported at its first call."""
    return partial(_call, f"mlff_triton.kernels.ops.{stem}", name or stem, **options)


def reference(stem: str, name: str | None = None, **options: Any) -> Function:
    """Its counterpart in plain PyTorch."""
    return partial(_call, f"mlff_triton.kernels.ops.reference.{stem}", name or stem, **options)


def _call(module: str, name: str, *inputs: Tensor, **options: Any) -> Any:
    return getattr(import_module(module), name)(*inputs, **options)


# What TensorNet's published code does in PyTorch.


def symmetric_eager(v: Tensor) -> Tensor:
    """Symmetric traceless tensors [N, 3, 3] of vectors [N, 3]."""
    outer = v[:, :, None] * v[:, None, :]
    trace = outer.diagonal(dim1=1, dim2=2).mean(-1)
    identity = trace[:, None, None] * torch.eye(3, dtype=v.dtype, device=v.device)
    return 0.5 * (outer + outer.transpose(1, 2)) - identity


def skew_eager(v: Tensor) -> Tensor:
    """Skew tensors [N, 3, 3] of vectors [N, 3]."""
    x, y, z = v.unbind(1)
    zero = torch.zeros_like(x)
    return torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], 1).view(-1, 3, 3)


def scaled_eager(tensors: Function, v: Tensor, factors: Tensor) -> Tensor:
    """Tensors [N, 3, 3] of vectors [N, 3] times factors [N, F]: [N, 3, 3, F]."""
    return tensors(v)[..., None] * factors[:, None, None]


def messages_eager(
    y: Tensor, factors: Tensor, row_ptr: Tensor, senders: Tensor, _reverse: Tensor
) -> Tensor:
    """Messages of full tensors [N, 3, 3, F], one factor for all of it [E, 1, 1, F]."""
    atoms = torch.arange(len(y), device=y.device)
    receivers = atoms.repeat_interleave(row_ptr.diff(), output_size=len(senders))
    return torch.zeros_like(y).index_add(0, receivers, factors * y.index_select(0, senders))


def attention_ours(q: Tensor, k: Tensor, v: Tensor, row_ptr: Tensor) -> Tensor:
    """Attention of sequences that are all of one length."""
    from mlff_triton.kernels.ops.attention import attention

    return attention(q, k, v, row_ptr, len(q) // (len(row_ptr) - 1))


def attention_eager(q: Tensor, k: Tensor, v: Tensor, row_ptr: Tensor) -> Tensor:
    """PyTorch's own, which has an axis for sequences."""
    sequences = (x.unflatten(0, (len(row_ptr) - 1, -1)).transpose(1, 2) for x in (q, k, v))
    return scaled_dot_product_attention(*sequences).transpose(1, 2).flatten(0, 1)


class Source:
    """Makes float32 inputs for a number of atoms on a device.

    Parameters
    ----------
    n_atoms : int
        N.
    device : torch.device
        Where they are wanted.
    """

    def __init__(self, n_atoms: int, device: torch.device) -> None:
        self.n_atoms, self.device = n_atoms, device
        self._generator = torch.Generator(device).manual_seed(0)

    def random(self, *shape: int) -> Tensor:
        """Normal numbers."""
        return torch.randn(shape, generator=self._generator, device=self.device)

    @property
    def graph(self) -> Graph:
        """Neighbors in a box."""
        return _graph(self.n_atoms).to(self.device)

    def vectors(self) -> Inputs:
        """Vectors [N, 3]."""
        return (self.random(self.n_atoms, 3),)

    def scaled_vectors(self) -> Inputs:
        """Vectors [N, 3] and factors [N, F]."""
        return (*self.vectors(), self.random(self.n_atoms, CHANNELS))

    def full(self) -> Inputs:
        """Tensors [N, 3, 3, F]."""
        return (self.random(self.n_atoms, 3, 3, CHANNELS),)

    def packed(self) -> Inputs:
        """Tensors [9, N, F]."""
        return (self.random(9, self.n_atoms, CHANNELS),)

    def two_packed(self) -> Inputs:
        """Two tensors [9, N, F]."""
        return (*self.packed(), *self.packed())

    def full_messages(self) -> Inputs:
        """Tensors [N, 3, 3, F], a factor an edge and channel [E, 1, 1, F], neighbors."""
        graph = self.graph
        factors = self.random(graph.n_edges, 1, 1, CHANNELS)
        return (*self.full(), factors, graph.row_ptr, graph.senders, graph.reverse)

    def rows_to_normalize(self) -> Inputs:
        """Rows [N, 3 F], weights and biases [3 F]."""
        width = 3 * CHANNELS
        return self.random(self.n_atoms, width), self.random(width), self.random(width)

    def rows_to_map(self) -> Inputs:
        """Rows [N, F], weights [2 F, F] and biases [2 F]."""
        weight = self.random(2 * CHANNELS, CHANNELS) / CHANNELS**0.5
        return self.random(self.n_atoms, CHANNELS), weight, self.random(2 * CHANNELS)

    def segments(self) -> Inputs:
        """Rows [N, F] and where their segments of some 21 rows begin."""
        starts = torch.arange(0, self.n_atoms + 21, 21, device=self.device)
        return self.random(self.n_atoms, CHANNELS), starts.clamp(max=self.n_atoms)

    def sequences(self) -> Inputs:
        """Queries, keys and values [T, 20, 16] of T rows, in sequences of 512 if they fit."""
        length = 512 if self.n_atoms % 512 == 0 else self.n_atoms
        row_ptr = torch.arange(0, self.n_atoms + 1, length, device=self.device)
        return *(self.random(self.n_atoms, 20, 16) for _ in "qkv"), row_ptr

    def packed_messages(self) -> Inputs:
        """Tensors [9, N, F], three factors an edge and channel [E, 3, F], neighbors."""
        graph = self.graph
        factors = self.random(graph.n_edges, 3, CHANNELS)
        return (*self.packed(), factors, graph.row_ptr, graph.senders, graph.reverse)


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
