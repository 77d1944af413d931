"""Sums over neighbors with tabulated functions of the distance; differentiable twice.

    M_i = f_k(0) y_i + sum_j f_k(d_ij) y_j       with the k of each component

G. Simeon and G. De Fabritiis, NeurIPS 2023, https://arxiv.org/abs/2306.06482, eq. 11. The
kernels are those of the engine, which never store the factors. Second derivatives are those of the
reference. Tables are constants here. To train them, compute factors with `linear`, and sum with
`message_passing`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.kernels.common.checks import check_floats, check_graph, check_shape
from mlff_triton.kernels.common.operators import by_reference, operator
from mlff_triton.kernels.ops.radial_arguments import (
    check_channels,
    check_constants,
    constant_knots,
    locate,
)
from mlff_triton.kernels.ops.reference import radial_message_passing as reference
from mlff_triton.kernels.tensornet.message_product import (
    message_backward,
    message_product,
)
from mlff_triton.kernels.types.edges import Edges, Knots


def _edges_of(distance: Tensor, knots: Knots, graph: tuple[Tensor, ...]) -> Edges:
    """Return edges with everything that message passing reads; directions are placeholders."""
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


def _reference(y: Tensor, distance: Tensor, table: Tensor, own: Tensor, *rest: Tensor) -> Tensor:
    knots = constant_knots(*rest[:2])
    return reference.radial_message_passing(
        y, distance, table.detach(), own.detach(), knots, *rest[2:]
    )


@operator(
    "radial_message_passing_backward",
    outputs=("y", "distance"),
    differentiate=by_reference(_reference, wrt=(0, 1)),
)
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
    """Return the gradients of y and of the distances."""
    if not y.numel():
        return y.new_empty(y.shape), torch.zeros_like(distance)
    grad, y, table, own = (t.contiguous() for t in (grad, y, table, own))
    edges = _edges_of(distance, Knots(positions, intervals), (row_ptr, senders, reverse))
    slope = torch.empty_like(distance)
    direct = torch.zeros_like(y)
    grad_y = message_backward(grad, y, direct, table, own, edges, slope, accumulate=False)
    return grad_y, slope[reverse]  # the kernel writes them for the opposite edges


@operator("radial_message_passing", outputs="y", gradients=_radial_message_passing_backward)
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
    edges = _edges_of(distance, Knots(positions, intervals), (row_ptr, senders, reverse))
    charge_factor = y  # not read: there is no product to scale
    return message_product(y, table, own, edges, charge_factor, group="none")[0]


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
    """Sum neighbor tensors, each part times a function of the distance, in one pass.

    Parameters
    ----------
    y : [9, N, F]
        Tensor that each atom sends, packed as in `mlff_triton.model.irreps`; F is a power of two;
        float32 or float64.
    distance : [E]
        Distances in Å, between the first knot and the last, equal for opposite edges.
    table, own : [K + 1, 3, 3, F], [3, F]
        Functions at the knots, as for `radial_factors`, and factors of the atom's own tensor: the
        functions at distance 0, or zeros. They get no gradients.
    knots : Knots
        Knots of the table, in float64.
    row_ptr, senders, reverse : int64 or int32 [N + 1], [E], [E]
        The neighbor list, as in `mlff_triton.Graph`. The values are not checked.

    Returns
    -------
    [9, N, F]
        Messages, packed like ``y``.

    Raises
    ------
    InputError
        If shapes, dtypes or devices do not fit together, F is not a power of two, or a constant
        requires a gradient.
    BackendError
        If the tensors are not on a GPU.

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
    check_channels(channels)
    message: Tensor = _radial_message_passing(
        y, distance, table, own, *knots, row_ptr, senders, reverse
    )
    return message
