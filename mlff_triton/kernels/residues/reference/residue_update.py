"""Update of residues by messages from their neighbors, in plain PyTorch.

    m_i = sum_j w_j (gelu(gelu(receiver_i + e_ij W1 + sender_j) W2 + b2) W3 + b3)
    x_i <- norm(x_i + m_i)
    x_i <- mask_i norm'(x_i + gelu(x_i U + u) D + d)

Source: J. Dauparas et al., "Robust deep learning-based protein sequence design using ProteinMPNN",
https://doi.org/10.1126/science.add2187.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import gelu

from mlff_triton.kernels.ops.reference.layer_norm import layer_norm
from mlff_triton.kernels.residues.reference.edge_update import edge_hidden
from mlff_triton.kernels.residues.types import EdgeNetwork, ResidueNetwork


def residue_update(
    x: Tensor,
    edges: Tensor,
    receivers: Tensor,
    senders: Tensor,
    sources: Tensor,
    mask: Tensor,
    message: EdgeNetwork,
    network: ResidueNetwork,
    weights: Tensor | None = None,
) -> Tensor:
    """Compute `mlff_triton.kernels.residues.residue_update.residue_update`."""
    hidden = edge_hidden(edges, receivers, senders, sources, message)
    messages = hidden @ message.third.weight + message.third.bias
    if weights is not None:
        messages = weights[..., None] * messages
    x = layer_norm(x + messages.sum(1), *network.norm)
    hidden = gelu(x @ network.up.weight + network.up.bias)
    x = layer_norm(x + hidden @ network.down.weight + network.down.bias, *network.last_norm)
    return mask[:, None] * x
