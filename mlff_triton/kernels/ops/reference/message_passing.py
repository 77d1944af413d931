"""Sums of weighted neighbor tensors, in plain PyTorch.

For every atom ``i``, over the edges ``e = (i, j)`` that it receives:

    M_i = sum_e f(e) * y_j

with one factor per edge, channel and part of the tensor: Simeon and De Fabritiis, "TensorNet:
Cartesian Tensor Representations for Efficient Learning of Molecular Potentials", NeurIPS 2023,
https://arxiv.org/abs/2306.06482, eq. 11.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.kernels.common.reference.tensors import PART_OF_COMPONENT


def message_passing(
    y: Tensor, factors: Tensor, row_ptr: Tensor, senders: Tensor, reverse: Tensor
) -> Tensor:
    """Compute `mlff_triton.kernels.ops.message_passing.message_passing`."""
    del reverse  # autograd scatters instead
    full = y.dim() == 4
    components = y.flatten(1, 2).movedim(1, 0) if full else y
    weights = factors.flatten(1, -2).movedim(1, 0)
    if len(weights) == 3:
        weights = weights[list(PART_OF_COMPONENT)]
    edges = torch.arange(len(senders), device=row_ptr.device, dtype=row_ptr.dtype)
    receivers = torch.searchsorted(row_ptr, edges, right=True) - 1  # N: no atom
    messages = components.index_select(1, senders) * weights
    sums = components.new_zeros(9, len(row_ptr), components.shape[2])
    summed = sums.index_add(1, receivers, messages)[:, :-1]
    return summed.movedim(0, 1).reshape(y.shape) if full else summed
