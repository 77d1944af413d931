"""Layer normalization of packed rows after a constant vector is added, in plain PyTorch.

    y = (t - mean(t)) / sqrt(var(t) + eps) * weight + bias      t = x + shift

The moments of rows are their sums, and those of their squares.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.kernels.ops.reference.layer_norm import layer_norm


def token_norm(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, shift: Tensor | None = None
) -> Tensor:
    """As `mlff_triton.kernels.transformer.token_norm.token_norm`, of all rows."""
    return layer_norm(x if shift is None else x + shift, weight, bias, eps)


def token_moments(x: Tensor) -> Tensor:
    """As `mlff_triton.kernels.transformer.token_norm.token_moments`, of all rows."""
    return torch.stack([x.sum(1), x.square().sum(1)])[:, None]
