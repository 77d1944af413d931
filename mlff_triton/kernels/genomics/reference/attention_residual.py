"""Residual connections of a transformer whose rows are kept in float32, in plain PyTorch.

x <- x + change      y = x in half precision
"""

from __future__ import annotations

from torch import Tensor


def attention_residual(x: Tensor, change: Tensor) -> Tensor:
    """Compute `mlff_triton.kernels.genomics.attention_residual.attention_residual`."""
    return x.add_(change).to(change.dtype, copy=True)
