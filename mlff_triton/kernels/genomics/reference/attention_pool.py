"""Pooling of pairs of rows with attention, in plain PyTorch.

    y = W0 x + b + residual
    m_i = (y_2i + y_2i+1) / 2        h_i = (y_2i - y_2i+1) / 2
    pooled_i = sum_j softmax_j(W y_j) y_j        j in {2i, 2i+1}

Source: Ž. Avsec et al., "Effective gene expression prediction from sequence by integrating
long-range interactions", https://doi.org/10.1038/s41592-021-01252-x.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from mlff_triton.kernels.genomics.reference.convolution import activate
from mlff_triton.kernels.genomics.types import Activated, Activation


def paired_rows(x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None) -> Tensor:
    """Compute `mlff_triton.kernels.genomics.attention_pool.paired_rows`."""
    y = linear(x, weight).to(bias.dtype) + bias
    if residual is not None:
        y = y + residual
    even, odd = y.unflatten(1, (-1, 2)).unbind(2)
    return torch.stack([(even + odd) / 2, (even - odd) / 2]).to(x.dtype)


def attention_pool(
    pairs: Tensor, weight: Tensor, *, activation: Activation | None = None, with_rows: bool = True
) -> Activated:
    """Compute `mlff_triton.kernels.genomics.attention_pool.attention_pool`."""
    mean, difference = pairs
    rows = torch.stack([mean + difference, mean - difference])
    y = (rows * linear(rows, weight).softmax(0)).sum(0)
    return Activated(
        y if with_rows else None, None if activation is None else activate(y, activation)
    )
