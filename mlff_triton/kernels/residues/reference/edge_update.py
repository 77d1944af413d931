"""Update of the edges of a graph of residues, in plain PyTorch.

    h = gelu(gelu(receiver_i + e_ij W1 + sender_j) W2 + b2) W3 + b3
    e_ij <- norm(e_ij + h)

Source: J. Dauparas et al., "Robust deep learning-based protein sequence design using ProteinMPNN",
https://doi.org/10.1126/science.add2187.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import gelu

from mlff_triton.kernels.ops.reference.layer_norm import layer_norm
from mlff_triton.kernels.residues.types import EdgeNetwork
from mlff_triton.kernels.types.norm import Norm


def edge_hidden(
    edges: Tensor, receivers: Tensor, senders: Tensor, sources: Tensor, network: EdgeNetwork
) -> Tensor:
    """Compute the second hidden values [R, K, C] of a network of edges."""
    hidden = gelu(receivers[:, None] + edges @ network.first + senders[sources.long()])
    return gelu(hidden @ network.second.weight + network.second.bias)


def edge_update(
    edges: Tensor,
    receivers: Tensor,
    senders: Tensor,
    sources: Tensor,
    network: EdgeNetwork,
    norm: Norm,
) -> Tensor:
    """Compute `mlff_triton.kernels.residues.edge_update.edge_update`."""
    hidden = edge_hidden(edges, receivers, senders, sources, network)
    change = hidden @ network.third.weight + network.third.bias
    return layer_norm(edges + change, *norm)
