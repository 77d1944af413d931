"""Convolutions of DiffDock, with the operators of a backend."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from mlff_triton.bio.models.diffdock.edges import Edges
from mlff_triton.bio.models.diffdock.weights import Convolution, Network
from mlff_triton.kernels.convolution.protocol import ConvolutionOperators

Ends = tuple[tuple[Tensor, Tensor], ...]
"""Rows of nodes [N, F], and the node of each edge, int64 [E]."""


class Group(NamedTuple):
    """Edges whose weights come from one network.

    Attributes
    ----------
    edges : Edges
        Edges.
    harmonics : [E, S]
        Spherical harmonics of edges, times `mean_factors` for means over all groups.
    node : [senders, columns]
        Rows of nodes that send.
    features : [E, F]
        First inputs of the network.
    ends : Ends
        Its other inputs, if any.
    """

    edges: Edges
    harmonics: Tensor
    node: Tensor
    features: Tensor
    ends: Ends = ()


def convolve(
    ops: ConvolutionOperators, layer: Convolution, groups: Sequence[Group], first: int = 0
) -> Tensor:
    """Return sums [receivers, columns of the product] over the edges of all groups.

    Groups have the same receivers. The layer has one network for all groups, or one per group;
    those from ``first`` on are used.
    """
    parts = []
    for index, group in enumerate(groups, first):
        network = layer.networks[index if len(layer.networks) > 1 else 0]
        if group.edges.size:
            messages = ops.edge_convolution(
                group.node,
                group.harmonics,
                hidden_values(ops, network, group),
                network.last.weight,
                network.last.bias,
                group.edges.row_ptr,
                group.edges.senders,
                layer.product,
            )
            parts.append(messages)
    if not parts:
        return groups[0].node.new_zeros(len(groups[0].edges.row_ptr) - 1, layer.columns)
    return reduce(torch.add, parts)


def hidden_values(ops: ConvolutionOperators, network: Network, group: Group) -> Tensor:
    """Return the hidden values [E, H] from which the last map of a network makes weights."""
    x, ends = group.features, group.ends
    for weight, bias in network.layers:
        x, ends = ops.edge_network(x, ends, weight, bias, network.activation), ()
    return x
