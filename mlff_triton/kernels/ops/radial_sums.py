"""Sums over neighbors with tabulated radial functions, for plain tensors; differentiable twice.

    M_i = f_k(0) y_i + sum_j f_k(d_ij) y_j       with the k of each component
    X_i = v_1(0) 1 + sum_j v_1 1 + v_2 A(u_ij) + v_3 (u_ij u_ij^T - 1/3)
    v_k = (P_i + Q_j) f_k(d_ij)

G. Simeon and G. De Fabritiis, NeurIPS 2023, https://arxiv.org/abs/2306.06482, eqs. 5-8 and 11. The
kernels are those of the engine, `radial_message_passing` and `radial_embedding`, in which factors
never lie in memory; second derivatives are those of the reference. Tables are constants here: to
train them, make factors with `linear`, and sum with `message_passing` and `edge_tensors`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.common.checks import (
    check_floats,
    check_graph,
    check_shape,
)
from mlff_triton.kernels.common.derivatives import differentiate_by_reference
from mlff_triton.kernels.ops.radial_factors import check_constants, constant_knots, locate
from mlff_triton.kernels.ops.reference import radial_sums as reference
from mlff_triton.kernels.tensornet import message_product as message_kernels
from mlff_triton.kernels.tensornet import tensor_embedding as embedding_kernels
from mlff_triton.kernels.types.edges import Edges, Knots


def _edges_at(distance: Tensor, knots: Knots, graph: tuple[Tensor, ...]) -> Edges:
    """What message passing reads of the edges, and nothing of their directions."""
    row_ptr, senders, reverse = graph
    return Edges(
        row_ptr[:-1].int(),
        row_ptr[1:].int(),
        senders.int(),
        torch.arange(len(senders), device=senders.device, dtype=torch.int32),
        reverse.int(),
        *locate(distance, knots),
        direction=distance,
        distance=distance,
    )


def _edges_along(vectors: Tensor, knots: Knots, graph: tuple[Tensor, ...]) -> Edges:
    """Return edges with all their geometry, located in float64."""
    row_ptr, senders, reverse = graph
    edges = Edges.of_graph(row_ptr, senders, reverse, vectors.double(), knots)
    return edges.to(vectors.dtype)


@torch.library.custom_op("mlff_triton::radial_message_passing", mutates_args=())
def _radial_message_passing(
    y: Tensor,
    distance: Tensor,
    table: Tensor,
    own: Tensor,
    positions: Tensor,
    intervals: Tensor,
    row_ptr: Tensor,
    senders: Tensor,
    reverse: Tensor,
) -> Tensor:
    if not y.numel():
        return y.new_empty(y.shape)
    y, table, own = y.contiguous(), table.contiguous(), own.contiguous()
    edges = _edges_at(distance, Knots(positions, intervals), (row_ptr, senders, reverse))
    unread = y  # there is no product to scale
    return message_kernels.message_product(y, table, own, edges, unread, group="none")[0]


@torch.library.custom_op("mlff_triton::radial_message_passing_backward", mutates_args=())
def _radial_message_passing_backward(
    grad: Tensor,
    y: Tensor,
    distance: Tensor,
    table: Tensor,
    own: Tensor,
    positions: Tensor,
    intervals: Tensor,
    row_ptr: Tensor,
    senders: Tensor,
    reverse: Tensor,
) -> tuple[Tensor, Tensor]:
    """Gradients of y and of the distances."""
    if not y.numel():
        return y.new_empty(y.shape), torch.zeros_like(distance)
    grad, y, table, own = (t.contiguous() for t in (grad, y, table, own))
    edges = _edges_at(distance, Knots(positions, intervals), (row_ptr, senders, reverse))
    slope = torch.empty_like(distance)
    grad_y = message_kernels.message_backward(
        grad, y, torch.zeros_like(y), table, own, edges, slope, accumulate=False
    )
    return grad_y, slope[reverse]  # the kernel finds those of opposite edges


@torch.library.custom_op("mlff_triton::radial_embedding", mutates_args=())
def _radial_embedding(
    vectors: Tensor,
    species: Tensor,
    receiver: Tensor,
    sender: Tensor,
    table: Tensor,
    own: Tensor,
    positions: Tensor,
    intervals: Tensor,
    row_ptr: Tensor,
    senders: Tensor,
    reverse: Tensor,
) -> Tensor:
    if not len(species):
        return receiver.new_empty(9, 0, receiver.shape[1])
    receiver, sender, table, own = (t.contiguous() for t in (receiver, sender, table, own))
    edges = _edges_along(vectors, Knots(positions, intervals), (row_ptr, senders, reverse))
    species = species.int()
    return embedding_kernels.tensor_embedding(species, receiver, sender, table, own, edges)[0]


@torch.library.custom_op("mlff_triton::radial_embedding_backward", mutates_args=())
def _radial_embedding_backward(
    grad: Tensor,
    vectors: Tensor,
    species: Tensor,
    receiver: Tensor,
    sender: Tensor,
    table: Tensor,
    own: Tensor,
    positions: Tensor,
    intervals: Tensor,
    row_ptr: Tensor,
    senders: Tensor,
    reverse: Tensor,
) -> Tensor:
    """Gradients of the vectors."""
    del own  # does not depend on them
    if not len(vectors):
        return vectors.new_empty(vectors.shape)
    grad, receiver, sender, table = (t.contiguous() for t in (grad, receiver, sender, table))
    edges = _edges_along(vectors, Knots(positions, intervals), (row_ptr, senders, reverse))
    grad_vectors = embedding_kernels.tensor_embedding_backward(
        grad, species.int(), receiver, sender, table, edges, slope=None
    )
    return grad_vectors.T.contiguous()


_radial_message_passing.register_fake(lambda y, *_: y.new_empty(y.shape))
_radial_message_passing_backward.register_fake(
    lambda grad, y, distance, *_: (y.new_empty(y.shape), distance.new_empty(distance.shape))  # noqa: ARG005
)
_radial_embedding.register_fake(
    lambda vectors, species, receiver, *_: vectors.new_empty(9, len(species), receiver.shape[1])
)
_radial_embedding_backward.register_fake(
    lambda grad, vectors, *_: vectors.new_empty(vectors.shape)  # noqa: ARG005
)


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    del output
    ctx.save_for_backward(*inputs)


_radial_message_passing.register_autograd(
    lambda ctx, grad: (*_radial_message_passing_backward(grad, *ctx.saved_tensors), *[None] * 7),
    setup_context=_save,
)
_radial_embedding.register_autograd(
    lambda ctx, grad: (_radial_embedding_backward(grad, *ctx.saved_tensors), *[None] * 10),
    setup_context=_save,
)


def _reference_messages(
    y: Tensor, distance: Tensor, table: Tensor, own: Tensor, *rest: Tensor
) -> Tensor:
    knots = constant_knots(rest[:2])
    return reference.radial_message_passing(
        y, distance, table.detach(), own.detach(), knots, *rest[2:]
    )


def _reference_embedding(
    vectors: Tensor,
    species: Tensor,
    receiver: Tensor,
    sender: Tensor,
    table: Tensor,
    own: Tensor,
    *rest: Tensor,
) -> Tensor:
    return reference.radial_embedding(
        vectors,
        species,
        receiver.detach(),
        sender.detach(),
        table.detach(),
        own.detach(),
        constant_knots(rest[:2]),
        *rest[2:],
    )


differentiate_by_reference(_radial_message_passing_backward, _reference_messages, wrt=(0, 1))
differentiate_by_reference(_radial_embedding_backward, _reference_embedding, wrt=(0,))


def radial_message_passing(
    y: Tensor,
    distance: Tensor,
    table: Tensor,
    own: Tensor,
    knots: Knots,
    row_ptr: Tensor,
    senders: Tensor,
    reverse: Tensor,
) -> Tensor:
    """Sum of the neighbors' tensors, each part times a function of the distance, in one pass.

    Parameters
    ----------
    y : [9, N, F]
        What every atom sends, packed as in `model.irreps`; F is a power of two; float32 or
        float64.
    distance : [E]
        Å, between the first knot and the last, the same for opposite edges.
    table, own : [K + 1, 3, 3, F], [3, F]
        Functions at the knots, as for `radial_factors`, and factors of an atom's own tensor: those
        at distance 0, or zeros. They get no gradients.
    knots : Knots
        Knots of the table, in float64.
    row_ptr, senders, reverse : int64 or int32 [N + 1], [E], [E]
        The neighbor list, as in `mlff_triton.Graph`. Their values are not checked.

    Returns
    -------
    [9, N, F]

    Raises
    ------
    InputError
        If shapes, dtypes or devices do not fit together, F is no power of two, or a constant
        requires a gradient.
    BackendError
        If the tensors do not lie on a GPU.

    References
    ----------
    https://arxiv.org/abs/2306.06482, eq. 11.

    Examples
    --------
    >>> knots = Knots(torch.tensor([0.0, 4.0]).double().cuda(), torch.tensor([0]).int().cuda())
    >>> line = torch.tensor([[4.0, -1.0, -1.0], [0.0, -1.0, 0.0]]).cuda()  # 4 - d
    >>> table, own = line[:, :, None, None].repeat(1, 1, 3, 8), torch.zeros(3, 8).cuda()
    >>> y, distance = torch.ones(9, 2, 8).cuda(), torch.tensor([1.0, 1.0]).cuda()
    >>> graph = torch.tensor([[0, 1, 2], [1, 0, 0], [1, 0, 0]]).cuda()
    >>> row_ptr, senders, reverse = graph[0], graph[1, :2], graph[2, :2]
    >>> m = radial_message_passing(y, distance, table, own, knots, row_ptr, senders, reverse)
    >>> m[0, :, 0].tolist()
    [3.0, 3.0]
    """
    check_shape("y", y, (9, "N", "F"))
    _, n_atoms, channels = y.shape
    check_shape("distance", distance, ("E",))
    check_constants(knots, table=table, own=own)
    check_shape("table", table, ("K + 1", 3, 3, channels))
    check_shape("own", own, (3, channels))
    check_floats(y=y, distance=distance, table=table, own=own)
    check_graph(y, n_atoms, len(distance), row_ptr, senders, reverse)
    _check_channels(channels)
    message: Tensor = _radial_message_passing(
        y, distance, table, own, *knots, row_ptr, senders, reverse
    )
    return message


def radial_embedding(
    vectors: Tensor,
    species: Tensor,
    receiver: Tensor,
    sender: Tensor,
    table: Tensor,
    own: Tensor,
    knots: Knots,
    row_ptr: Tensor,
    senders: Tensor,
    reverse: Tensor,
) -> Tensor:
    """First tensors of all atoms from their elements and neighbors, in one pass.

    Parameters
    ----------
    vectors : [E, 3]
        From sender to receiver, Å, as long as the table reaches, the opposite of those of opposite
        edges; float32 or float64.
    species : int64 or int32 [N]
        Element of each atom. Its values are not checked.
    receiver, sender : [S, F]
        What elements give as receivers (P) and as senders (Q); F is a power of two.
    table, own : [K + 1, 3, 3, F], [F]
        Functions at the knots, as for `radial_factors`, and the first one at distance 0, or zeros.
        These four get no gradients.
    knots : Knots
        Knots of the table, in float64.
    row_ptr, senders, reverse : int64 or int32 [N + 1], [E], [E]
        The neighbor list, as in `mlff_triton.Graph`. Their values are not checked.

    Returns
    -------
    [9, N, F]
        Packed as in `mlff_triton.model.irreps`.

    Raises
    ------
    InputError
        If shapes, dtypes or devices do not fit together, F is no power of two, or a constant
        requires a gradient.
    BackendError
        If the tensors do not lie on a GPU.

    References
    ----------
    https://arxiv.org/abs/2306.06482, eqs. 5-8.

    Examples
    --------
    >>> knots = Knots(torch.tensor([0.0, 4.0]).double().cuda(), torch.tensor([0]).int().cuda())
    >>> line = torch.tensor([[4.0, -1.0, -1.0], [0.0, -1.0, 0.0]]).cuda()  # 4 - d
    >>> table, own = line[:, :, None, None].repeat(1, 1, 3, 8), torch.zeros(8).cuda()
    >>> vectors = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, -1.0]]).cuda()
    >>> species = torch.tensor([0, 0]).cuda()
    >>> of_element = torch.ones(1, 8).cuda()
    >>> graph = torch.tensor([[0, 1, 2], [1, 0, 0], [1, 0, 0]]).cuda()
    >>> row_ptr, senders, reverse = graph[0], graph[1, :2], graph[2, :2]
    >>> tables = of_element, of_element, table, own, knots
    >>> radial_embedding(vectors, species, *tables, row_ptr, senders, reverse)[:4, 0, 0].tolist()
    [6.0, 0.0, 0.0, 6.0]
    """
    check_shape("vectors", vectors, ("E", 3))
    check_shape("species", species, ("N",))
    check_shape("receiver", receiver, ("S", "F"))
    check_shape("sender", sender, receiver.shape)
    channels = receiver.shape[1]
    check_constants(knots, receiver=receiver, sender=sender, table=table, own=own)
    check_shape("table", table, ("K + 1", 3, 3, channels))
    check_shape("own", own, (channels,))
    check_floats(vectors=vectors, receiver=receiver, sender=sender, table=table, own=own)
    check_graph(vectors, len(species), len(vectors), row_ptr, senders, reverse)
    _check_channels(channels)
    x: Tensor = _radial_embedding(
        vectors, species, receiver, sender, table, own, *knots, row_ptr, senders, reverse
    )
    return x


def _check_channels(channels: int) -> None:
    if channels & (channels - 1):
        raise InputError(
            f"there are {channels} channels: use a power of two, or radial_factors with "
            "message_passing or edge_tensors"
        )
