"""The operator cases: inputs, our kernel, and the PyTorch code that it replaces.

The published micro-benchmarks specify "1K to 64K atoms" and nothing else; `source` has the inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.kernels import edge_messages, radial_messages
from benchmarks.kernels.source import Inputs, Source

SIZES = (1024, 4096, 16384, 65536)

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
    n_constants : int
        Number of the last arguments that get no gradients although they are real.
    """

    name: str
    inputs: Callable[[Source], Inputs]
    ours: Function
    eager: Function
    differentiable: bool = True
    has_edges: bool = False
    n_constants: int = 0


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
    Operator(
        "tensor_update",
        Source.update,
        kernel("tensor_update"),
        reference("tensor_update"),
        n_constants=1,
    ),
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
