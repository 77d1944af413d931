"""Convolutions of DiffDock, with the operators of a backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from mlff_triton.bio.models.diffdock.edges import Edges
from mlff_triton.bio.models.diffdock.weights import Convolution
from mlff_triton.kernels.convolution.protocol import ConvolutionOperators


class Group(NamedTuple):
    """Edges that one network gives their weights.

    Attributes
    ----------
    edges : Edges
        Edges.
    harmonics : [E, S]
        Spherical harmonics of edges, times `mean_factors` for means over all groups.
    node : [senders, columns]
        Rows of nodes that send.
    features : [E, F]
        Inputs of the network.
    """

    edges: Edges
    harmonics: Tensor
    node: Tensor
    features: Tensor


def convolve(
    ops: ConvolutionOperators, layer: Convolution, groups: Sequence[Group], first: int = 0
) -> Tensor:
    """Return sums [receivers, columns of the product] over the edges of all groups.

    Groups have the same receivers. The layer has one network for all, or one per group, of which
    those from ``first`` on are used.
    """
    n_receivers = len(groups[0].edges.row_ptr) - 1
    sums = groups[0].node.new_zeros(n_receivers, layer.columns)
    for index, (edges, harmonics, node, features) in enumerate(groups, first):
        network = layer.networks[index if len(layer.networks) > 1 else 0]
        if edges.size:
            sums = sums + ops.edge_convolution(
                node,
                harmonics,
                network.hidden(features),
                network.last.weight,
                network.last.bias,
                edges.row_ptr,
                edges.senders,
                layer.product,
            )
    return sums
