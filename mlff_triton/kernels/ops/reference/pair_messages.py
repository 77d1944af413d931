"""Sums of neighbor tensors with the factors of pairs, in plain PyTorch.

For every atom ``i``, over the edges ``e = (i, j)`` that it receives:

    M_i = sum_e f(pair(e)) * y_j

The message of TensorNet, whose factors depend on the distance alone: G. Simeon and G. De Fabritiis,
NeurIPS 2023, https://arxiv.org/abs/2306.06482, eq. 11.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.kernels.common.reference.tensors import PART_OF_COMPONENT


def pair_messages(
    y: Tensor, factors: Tensor, row_ptr: Tensor, senders: Tensor, pairs: Tensor
) -> Tensor:
    """Compute `mlff_triton.kernels.ops.pair_messages.pair_messages`."""
    edges = torch.arange(len(senders), device=row_ptr.device, dtype=row_ptr.dtype)
    receivers = torch.searchsorted(row_ptr, edges, right=True) - 1  # N: no atom
    of_edges = factors.index_select(0, pairs)
    weights = torch.stack([of_edges[:, part] for part in PART_OF_COMPONENT])  # [9, E, F]
    messages = y.index_select(1, senders) * weights
    sums = y.new_zeros(9, len(row_ptr), y.shape[2])
    return sums.index_add(1, receivers, messages)[:, :-1]
