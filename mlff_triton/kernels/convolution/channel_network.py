"""Convolution that keeps the channels of nodes, with weights from a network per edge.

The functions take the arguments of `mlff_triton.kernels.convolution.edge_convolution`, and the
gradients of its result.
"""

from __future__ import annotations

from collections.abc import Collection

from torch import Tensor

from mlff_triton.kernels.convolution.channel_blocks import ChannelRows, Network
from mlff_triton.kernels.convolution.channel_gradients import (
    channel_gradients,
    channel_weight_gradient,
)
from mlff_triton.kernels.convolution.channel_messages import channel_sums
from mlff_triton.kernels.convolution.channel_plan import packing_of
from mlff_triton.kernels.convolution.component_rows import (
    component_rows,
    gradient_rows,
    sender_sums,
)
from mlff_triton.kernels.convolution.edge_blocks import pack_weight
from mlff_triton.kernels.convolution.graphs import receivers_of
from mlff_triton.kernels.convolution.types import (
    BIAS,
    HARMONICS,
    HIDDEN,
    NODE,
    WEIGHT,
    TensorProduct,
)


def _prepare(
    node: Tensor,
    edge_sh: Tensor,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    senders: Tensor,
    product: TensorProduct,
) -> tuple[ChannelRows, Network]:
    """Return the inputs as kernels read them."""
    rows = component_rows(node, product.node, node.dtype)
    packed = pack_weight(weight, bias, packing_of(product, node.device).source)
    edges = ChannelRows(rows, edge_sh.contiguous(), senders.contiguous())
    return edges, Network(hidden.contiguous(), packed)


def network_sums(
    node: Tensor,
    edge_sh: Tensor,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    row_ptr: Tensor,
    senders: Tensor,
    product: TensorProduct,
    reduce: str,
) -> Tensor:
    """Return the convolved features [N, output columns]."""
    prepared = _prepare(node, edge_sh, hidden, weight, bias, senders, product)
    return channel_sums(*prepared, row_ptr, product, reduce)


def network_gradients(
    wanted: Collection[int],
    grad: Tensor,
    node: Tensor,
    edge_sh: Tensor,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    row_ptr: Tensor,
    senders: Tensor,
    product: TensorProduct,
    reduce: str,
) -> list[Tensor | None]:
    """Return the ``wanted`` gradients of nodes, harmonics, hidden values, weight and bias.

    Gradients that are not wanted are None; those of weight and bias are computed together. The
    gradients of nodes are in the dtype of the nodes, the others in the dtype of sums.
    """
    grad = gradient_rows(grad, row_ptr, product, reduce)
    prepared = _prepare(node, edge_sh, hidden, weight, bias, senders, product)
    of_node = of_sh = of_hidden = of_weight = of_bias = None
    if not {NODE, HARMONICS, HIDDEN}.isdisjoint(wanted):
        of_node, of_sh, of_hidden = channel_gradients(grad, *prepared, row_ptr, product, wanted)
    if of_node is not None:
        of_node = sender_sums(of_node, senders, len(node), product.node, node.dtype)
    if not {WEIGHT, BIAS}.isdisjoint(wanted):
        receivers = receivers_of(row_ptr, len(senders))
        of_weight, of_bias = channel_weight_gradient(grad, *prepared, receivers, product)
    return [of_node, of_sh, of_hidden, of_weight, of_bias]
