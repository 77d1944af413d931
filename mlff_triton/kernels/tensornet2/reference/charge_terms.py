"""Terms of the charges in the networks of edges, in plain PyTorch.

Arguments and results are those of `mlff_triton.kernels.tensornet2.charge_terms`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.kernels.common.reference.tensors import sum_at_receivers
from mlff_triton.kernels.types.edges import Edges
from mlff_triton.kernels.types.interaction_network import InteractionNetwork


def charge_terms(charges: Tensor, network: InteractionNetwork) -> Tensor:
    """Map the charges [N, Q] of receivers and of senders: [2, N, F]."""
    return torch.einsum("nq,qrf->rnf", charges, network.charges)


def charge_gradients(
    grad_sent: Tensor,
    by_edge: Tensor,
    by_atom: Tensor,
    network: InteractionNetwork,
    edges: Edges,
    others: Tensor | None,
) -> Tensor:
    """Compute the gradients of the charges [N, Q], given those of the terms."""
    slots, receivers = edges.live()
    opposite = edges.reverse[edges.origin[slots].long()].long()
    grad = sum_at_receivers(by_edge[opposite], receivers, len(edges.slot_begin))
    own = by_atom + grad_sent @ network.charges[:, 1].T
    grad[: len(own)] += own if others is None else own + others
    return grad
