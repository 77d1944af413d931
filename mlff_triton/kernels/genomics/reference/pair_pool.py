"""Bins of positions, pooled and normalized, in plain PyTorch.

y = rms_norm(mean of the positions of a bin)      z = gelu(y)
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import gelu, rms_norm


def pair_pool(
    x: Tensor, shift: Tensor, weight: Tensor, bias: Tensor, eps: float, width: int
) -> tuple[Tensor, Tensor]:
    """Compute `mlff_triton.kernels.genomics.pair_pool.pair_pool`."""
    mean = (x.unflatten(1, (-1, width)).mean(2) + shift).to(x.dtype)
    y = rms_norm(mean, weight.shape, weight, eps) + bias
    return y, gelu(y)
