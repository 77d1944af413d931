"""Terms of the charges in the networks of edges, as products of PyTorch.

Arguments and results are those of `mlff_triton.kernels.tensornet2.reference.charge_terms`, but
gradients of the charges of receivers are sums over their edges already.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.kernels.common.cpu.threads import own_threads
from mlff_triton.kernels.types.edges import Edges
from mlff_triton.kernels.types.interaction_network import InteractionNetwork


@own_threads()
def charge_terms(charges: Tensor, network: InteractionNetwork) -> Tensor:
    """Map the charges [N, Q] of receivers and of senders: [2, N, F]."""
    out = charges.new_empty(2, len(charges), network.charges.shape[2])
    for role in range(2):
        torch.mm(charges, network.charges[:, role], out=out[role])
    return out


@own_threads()
def charge_gradients(
    grad_sent: Tensor,
    by_edge: Tensor,  # noqa: ARG001 (there are none)
    by_atom: Tensor,
    network: InteractionNetwork,
    edges: Edges,  # noqa: ARG001 (sums are complete)
    others: Tensor | None,
) -> Tensor:
    """Compute the gradients of the charges [N, Q], given those of the terms."""
    grad = torch.addmm(by_atom, grad_sent, network.charges[:, 1].T)
    return grad if others is None else grad.add_(others)
