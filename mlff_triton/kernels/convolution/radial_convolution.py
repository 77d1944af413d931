"""Equivariant convolution with tabulated functions of the distance as weights.

    y_i = sum_e sum_p f_p(d_e) (x_j *_p s_e)

over the edges ``e = (i, j)`` that node ``i`` receives, for node features x, spherical harmonics s,
and paths p of a tensor product that keeps channels. S. Batzner et al., "E(3)-equivariant graph
neural networks for data-efficient and accurate interatomic potentials",
https://arxiv.org/abs/2101.03164; I. Batatia et al., "MACE", https://arxiv.org/abs/2206.07697.

Weights that depend on the distance alone are splines in a table. Kernels look them up edge by edge
and use them at once. Second derivatives come from the plain PyTorch reference. Tables are
constants. To train them, use `mlff_triton.kernels.convolution.edge_convolution`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.common.checks import check_device, check_floats, check_shape
from mlff_triton.kernels.common.operators import by_chosen, by_reference, chosen_like, operator
from mlff_triton.kernels.convolution.channel_blocks import ChannelRows
from mlff_triton.kernels.convolution.channel_gradients import channel_gradients
from mlff_triton.kernels.convolution.channel_messages import channel_sums
from mlff_triton.kernels.convolution.component_rows import (
    component_rows,
    gradient_rows,
    sender_sums,
)
from mlff_triton.kernels.convolution.graphs import check_graph, empty_output
from mlff_triton.kernels.convolution.reference import radial_convolution as reference
from mlff_triton.kernels.convolution.tabulated_edges import TabulatedEdges, tabulated_edges
from mlff_triton.kernels.convolution.types import TensorProduct
from mlff_triton.kernels.ops.radial_arguments import constant_knots
from mlff_triton.kernels.types.edges import Knots


def _reference(
    node: Tensor,
    edge_sh: Tensor,
    distance: Tensor,
    table: Tensor,
    positions: Tensor,
    intervals: Tensor,
    row_ptr: Tensor,
    senders: Tensor,
    product: str,
    reduce: str,
) -> Tensor:
    """Convolve in plain PyTorch."""
    knots = constant_knots(positions, intervals)
    floats = node, edge_sh, distance, table.detach()
    parsed = TensorProduct.parse(product)
    return reference.radial_convolution(*floats, knots, row_ptr, senders, parsed, reduce)


def _prepare(
    node: Tensor,
    edge_sh: Tensor,
    distance: Tensor,
    table: Tensor,
    positions: Tensor,
    intervals: Tensor,
    senders: Tensor,
    product: TensorProduct,
) -> tuple[ChannelRows, TabulatedEdges]:
    """Return the inputs as kernels read them."""
    rows = component_rows(node, product.node, node.dtype)
    located = tabulated_edges(distance, table, Knots(positions, intervals))
    return ChannelRows(rows, edge_sh.contiguous(), senders.contiguous()), located


@operator(
    "radial_convolution_gradient",
    outputs=chosen_like(3),
    differentiate=by_reference(_reference, chosen=True),
)
def _gradient(
    grad: Tensor,
    node: Tensor,
    edge_sh: Tensor,
    distance: Tensor,
    table: Tensor,
    positions: Tensor,
    intervals: Tensor,
    row_ptr: Tensor,
    senders: Tensor,
    product: str,
    reduce: str,
    wanted: Sequence[int],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the wanted gradients of nodes, harmonics and distances; the others are empty."""
    parsed = TensorProduct.parse(product)
    grad = gradient_rows(grad, row_ptr, parsed, reduce)
    constants = table, positions, intervals, senders, parsed
    prepared = _prepare(node, edge_sh, distance, *constants)
    of_node, *others = channel_gradients(grad, *prepared, row_ptr, parsed, wanted)
    if of_node is not None:
        of_node = sender_sums(of_node, senders, len(node), parsed.node, node.dtype)
    return tuple(  # type: ignore[return-value]
        node.new_empty(0) if x is None else x for x in (of_node, *others)
    )


@operator(
    "radial_convolution",
    outputs=lambda node, *others: empty_output(node, others[5], others[7]),
    differentiate=by_chosen(_gradient, 3),
)
def _radial_convolution(
    node: Tensor,
    edge_sh: Tensor,
    distance: Tensor,
    table: Tensor,
    positions: Tensor,
    intervals: Tensor,
    row_ptr: Tensor,
    senders: Tensor,
    product: str,
    reduce: str,
) -> Tensor:
    """Return the convolved features [N, output columns]."""
    parsed = TensorProduct.parse(product)
    rows, located = _prepare(node, edge_sh, distance, table, positions, intervals, senders, parsed)
    return channel_sums(rows, located, row_ptr, parsed, reduce)


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

    Differentiable twice, with respect to nodes, harmonics and distances.

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
        Receiver ``i`` has the edges ``row_ptr[i]:row_ptr[i + 1]``, from 0 to E without gaps, and
        edge ``e`` comes from node ``senders[e]``. The values are not checked.
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
        If shapes, dtypes or devices do not fit together, the product mixes channels, ``reduce`` is
        unknown, or the table requires a gradient.
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
    floats = node, edge_sh, distance
    out: Tensor = _radial_convolution(
        *floats, table, *knots, row_ptr, senders, product.text, reduce
    )
    return out
