"""Layer normalization, in plain PyTorch.

    y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias

over the last axis: J. L. Ba, J. R. Kiros and G. E. Hinton, "Layer Normalization", 2016,
https://arxiv.org/abs/1607.06450.
"""

from __future__ import annotations

from torch import Tensor


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """Compute `mlff_triton.kernels.ops.layer_norm.layer_norm`."""
    centered = x - x.mean(-1, keepdim=True)
    variance = centered.square().mean(-1, keepdim=True)
    y = centered * (variance + eps).rsqrt() * weight
    return y if bias is None else y + bias


def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None = None, eps: float = 1e-5
) -> tuple[Tensor, Tensor]:
    """Compute `mlff_triton.kernels.ops.layer_norm.add_layer_norm`."""
    total = x + residual
    return layer_norm(total, weight, bias, eps), total
