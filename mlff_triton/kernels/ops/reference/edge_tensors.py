"""Sums of edge tensors over the edges of each atom, in plain PyTorch.

For every atom ``i``, over the edges ``e = (i, j)`` that it receives, with their directions u:

    X_i = sum_e f_1 1 + f_2 A(u) + f_3 (u u^T - |u|^2 / 3)

the initial tensors of TensorNet: G. Simeon and G. De Fabritiis, NeurIPS 2023,
https://arxiv.org/abs/2306.06482, eq. 8.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.kernels.common.reference.tensors import PART_OF_COMPONENT, harmonics


def edge_tensors(directions: Tensor, factors: Tensor, row_ptr: Tensor) -> Tensor:
    """Compute `mlff_triton.kernels.ops.edge_tensors.edge_tensors`."""
    # An index of Python numbers would be copied from the host, which no CUDA graph can capture.
    of_components = torch.stack([factors[:, part] for part in PART_OF_COMPONENT])  # [9, E, F]
    tensors = harmonics(directions.T)[:, :, None] * of_components
    edges = torch.arange(len(factors), device=row_ptr.device, dtype=row_ptr.dtype)
    receivers = torch.searchsorted(row_ptr, edges, right=True) - 1  # N: no atom
    sums = tensors.new_zeros(9, len(row_ptr), factors.shape[2])
    return sums.index_add(1, receivers, tensors)[:, :-1]
