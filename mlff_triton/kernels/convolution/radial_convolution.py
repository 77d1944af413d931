"""Equivariant convolution with tabulated functions of the distance as weights.

    y_i = sum_e sum_p f_p(d_e) (x_j *_p s_e)

over the edges ``e = (i, j)`` that node ``i`` receives, for node features x, spherical harmonics s,
and paths p of a tensor product that keeps channels. S. Batzner et al., "E(3)-equivariant graph
neural networks for data-efficient and accurate interatomic potentials",
https://arxiv.org/abs/2101.03164; I. Batatia et al., "MACE", https://arxiv.org/abs/2206.07697.

Weights of a model that depend on the distance alone are splines in a table, which kernels look up
for a tile of edges and use at once. Second derivatives are those of the reference. Tables are
constants here. To train them, use `mlff_triton.kernels.convolution.edge_convolution`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.common.checks import check_device, check_floats, check_shape
from mlff_triton.kernels.common.operators import (
    by_reference,
    needed_gradients,
    operator,
    saved_inputs,
)
from mlff_triton.kernels.convolution.channel_blocks import RadialTable
from mlff_triton.kernels.convolution.channel_gradients import channel_edge_gradient
from mlff_triton.kernels.convolution.channel_messages import channel_node_gradient, channel_sums
from mlff_triton.kernels.convolution.channel_plan import ChannelPlan, channel_plan_of
from mlff_triton.kernels.convolution.edge_blocks import EdgeInputs
from mlff_triton.kernels.convolution.graphs import (
    check_graph,
    coupling_matrices,
    empty_output,
    gradient_of_sums,
    receivers_of,
    reduced,
)
from mlff_triton.kernels.convolution.reference.edge_convolution import edge_products, reduce_edges
from mlff_triton.kernels.convolution.reference.radial_convolution import tabulated_weights
from mlff_triton.kernels.convolution.types import TensorProduct, columns_of
from mlff_triton.kernels.ops.radial_arguments import constant_knots, locate
from mlff_triton.kernels.types.edges import Knots


def _reference(
    node: Tensor,
    matrices: Tensor,
    distance: Tensor,
    table: Tensor,
    positions: Tensor,
    intervals: Tensor,
    row_ptr: Tensor,
    senders: Tensor,
    product: str,
    reduce: str,
) -> Tensor:
    """Convolve with given coupling matrices, in plain PyTorch."""
    knots = constant_knots(positions, intervals)
    weights = tabulated_weights(distance, table.detach(), knots)
    messages = edge_products(node, matrices, weights, senders, TensorProduct.parse(product))
    return reduce_edges(messages, row_ptr, reduce)


def _prepare(
    node: Tensor,
    matrices: Tensor,
    distance: Tensor,
    table: Tensor,
    positions: Tensor,
    intervals: Tensor,
    row_ptr: Tensor,
    senders: Tensor,
    product: str,
) -> tuple[EdgeInputs, RadialTable, ChannelPlan]:
    """Return the inputs as kernels read them. Distances take the place of hidden values."""
    receivers = receivers_of(row_ptr, len(senders))
    edges = node.contiguous(), matrices.contiguous(), distance[:, None], senders.contiguous()
    located = RadialTable(*locate(distance, Knots(positions, intervals)), table.contiguous())
    plan = channel_plan_of(TensorProduct.parse(product), node.device)
    return EdgeInputs(*edges, receivers), located, plan


@operator(
    "radial_convolution_node_gradient",
    outputs="node",
    differentiate=by_reference(_reference, wrt=(0,)),
)
def _node_gradient(
    grad: Tensor,
    node: Tensor,
    matrices: Tensor,
    distance: Tensor,
    table: Tensor,
    positions: Tensor,
    intervals: Tensor,
    row_ptr: Tensor,
    senders: Tensor,
    product: str,
    reduce: str,
) -> Tensor:
    """Return the gradient of nodes."""
    grad = gradient_of_sums(grad, row_ptr, reduce, node.dtype)
    prepared = _prepare(
        node, matrices, distance, table, positions, intervals, row_ptr, senders, product
    )
    return channel_node_gradient(grad, *prepared)


@operator(
    "radial_convolution_edge_gradient",
    outputs=("matrices", "distance"),
    differentiate=by_reference(_reference, wrt=(1, 2)),
)
def _edge_gradient(
    grad: Tensor,
    node: Tensor,
    matrices: Tensor,
    distance: Tensor,
    table: Tensor,
    positions: Tensor,
    intervals: Tensor,
    row_ptr: Tensor,
    senders: Tensor,
    product: str,
    reduce: str,
) -> tuple[Tensor, Tensor]:
    """Return the gradients of coupling matrices and of distances."""
    grad = gradient_of_sums(grad, row_ptr, reduce, node.dtype)
    prepared = _prepare(
        node, matrices, distance, table, positions, intervals, row_ptr, senders, product
    )
    return channel_edge_gradient(grad, *prepared)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    inputs = saved_inputs(ctx)
    of_node, of_matrices, of_distance, *_ = needed_gradients(ctx)
    node = _node_gradient(grad, *inputs) if of_node else None
    edges = _edge_gradient(grad, *inputs) if of_matrices or of_distance else (None, None)
    return node, *edges


@operator(
    "radial_convolution",
    outputs=lambda node, *others: empty_output(node, others[5], others[7]),
    differentiate=_gradients,
)
def _radial_convolution(
    node: Tensor,
    matrices: Tensor,
    distance: Tensor,
    table: Tensor,
    positions: Tensor,
    intervals: Tensor,
    row_ptr: Tensor,
    senders: Tensor,
    product: str,
    reduce: str,
) -> Tensor:
    """Convolve with given coupling matrices [E, P]."""
    inputs, located, plan = _prepare(
        node, matrices, distance, table, positions, intervals, row_ptr, senders, product
    )
    n_out = columns_of(TensorProduct.parse(product).output)
    return reduced(channel_sums(inputs, located, plan, row_ptr, n_out), row_ptr, reduce)


def radial_convolution(
    node: Tensor,
    edge_sh: Tensor,
    distance: Tensor,
    table: Tensor,
    knots: Knots,
    row_ptr: Tensor,
    senders: Tensor,
    product: TensorProduct,
    reduce: str = "sum",
) -> Tensor:
    """Convolve node features on a graph, with weights that are functions of the distance.

    Differentiable twice, toward nodes, harmonics and distances.

    Parameters
    ----------
    node : [S, node columns]
        Features of sending nodes, in the irreps ``product.node``; float32 or float64.
    edge_sh : [E, harmonics]
        Spherical harmonics of edges, in the irreps ``product.harmonics``.
    distance : [E]
        Distances in Å, between the first knot and the last.
    table : [K + 1, 3, weights]
        Value, slope and secant of each weight at each knot, in the order of ``product``. It gets no
        gradient.
    knots : Knots
        Knots of the table, in float64.
    row_ptr, senders : int64 or int32 [N + 1], [E]
        Receiver ``i`` has the edges ``row_ptr[i]:row_ptr[i + 1]``, from 0 to E without gaps. The
        values are not checked.
    product : TensorProduct
        Irreps and paths, of the mode "uvu".
    reduce : {"sum", "mean"}
        Sum or mean of the messages that a node receives; 0 for nodes without edges.

    Returns
    -------
    [N, output columns]
        In the irreps ``product.output``.

    Raises
    ------
    InputError
        If shapes, dtypes or devices do not fit together, the product mixes channels, or the table
        requires a gradient.
    BackendError
        If the tensors are not on a GPU.

    References
    ----------
    https://arxiv.org/abs/2101.03164, https://arxiv.org/abs/2206.07697.

    Examples
    --------
    >>> product = TensorProduct.of("4x0e", "1x0e", "4x0e", [(0, 0, 0, "uvu", True)])
    >>> knots = Knots(torch.tensor([0.0, 4.0]).double().cuda(), torch.tensor([0]).int().cuda())
    >>> line = torch.tensor([[4.0, -1.0, -1.0], [0.0, -1.0, 0.0]]).cuda()  # 4 - d
    >>> table, distance = line[:, :, None].repeat(1, 1, 4), torch.tensor([1.0, 3.0]).cuda()
    >>> node, edge_sh = torch.ones(2, 4).cuda(), torch.ones(2, 1).cuda()
    >>> graph = torch.tensor([0, 2, 2]).cuda(), torch.tensor([0, 1]).cuda()
    >>> radial_convolution(node, edge_sh, distance, table, knots, *graph, product)[:, 0].tolist()
    [4.0, 0.0]
    """
    check_floats(node=node, edge_sh=edge_sh, distance=distance, table=table)
    check_graph(node, edge_sh, row_ptr, senders, product, reduce)
    if product.mode != "uvu":
        raise InputError(
            "a product that mixes channels needs a network per edge: use edge_convolution, or "
            "instructions of the mode uvu"
        )
    check_device(node, *knots)
    check_shape("distance", distance, (len(senders),))
    check_shape("knots.positions", knots.positions, ("K + 1",))
    if knots.positions.dtype != torch.float64:
        raise InputError(f"knots.positions is {knots.positions.dtype}: use float64")
    check_shape("table", table, (len(knots.positions), 3, product.n_weights))
    if table.requires_grad:
        raise InputError("table gets no gradient: detach it, or use edge_convolution to train it")
    matrices = coupling_matrices(edge_sh, product)
    out: Tensor = _radial_convolution(
        node, matrices, distance, table, *knots, row_ptr, senders, product.text, reduce
    )
    return out
