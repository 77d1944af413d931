"""Layer normalization of packed rows plus a constant vector, in plain PyTorch.

    y = (t - mean(t)) / sqrt(var(t) + eps) * weight + bias      t = x + shift

The moments of a row are the sum of its elements and the sum of their squares.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.kernels.ops.reference.layer_norm import layer_norm


def token_norm(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, shift: Tensor | None = None
) -> Tensor:
    """Normalize all rows as `mlff_triton.kernels.transformer.token_norm.token_norm` does."""
    return layer_norm(x if shift is None else x + shift, weight, bias, eps)


def token_moments(x: Tensor) -> Tensor:
    """Sum all rows as `mlff_triton.kernels.transformer.token_norm.token_moments` does."""
    return torch.stack([x.sum(1), x.square().sum(1)])[:, None]
