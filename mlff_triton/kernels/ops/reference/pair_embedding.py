"""Initial tensors of TensorNet, in plain PyTorch.

For every atom ``i``, over the edges ``e = (i, j)`` that it receives, with their directions u:

    X_i = sum_e (a_i + b_j) (f_1 1 + f_2 A(u) + f_3 (u u^T - |u|^2 / 3))

G. Simeon and G. De Fabritiis, NeurIPS 2023, https://arxiv.org/abs/2306.06482, eq. 8.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.kernels.ops.reference.edge_tensors import edge_tensors


def pair_embedding(
    directions: Tensor,
    factors: Tensor,
    at_receivers: Tensor,
    at_senders: Tensor,
    row_ptr: Tensor,
    senders: Tensor,
    pairs: Tensor,
    reverse: Tensor,
) -> Tensor:
    """Compute `mlff_triton.kernels.ops.pair_embedding.pair_embedding`."""
    del reverse  # autograd scatters instead
    edges = torch.arange(len(senders), device=row_ptr.device, dtype=row_ptr.dtype)
    receivers = (torch.searchsorted(row_ptr, edges, right=True) - 1).clamp(max=len(row_ptr) - 2)
    atoms = at_receivers.index_select(0, receivers) + at_senders.index_select(0, senders)
    return edge_tensors(directions, factors.index_select(0, pairs) * atoms[:, None], row_ptr)
