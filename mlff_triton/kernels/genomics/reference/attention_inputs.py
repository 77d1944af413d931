"""Queries, keys and values of AlphaGenome from one product, in plain PyTorch.

q_h = rotate(norm(x_h))      k = rotate(norm(x_k))      v = norm(x_v)
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from mlff_triton.kernels.types.norm import Norm


def attention_inputs(
    x: Tensor, q_norm: Norm, k_norm: Norm, v_norm: Norm, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute `mlff_triton.kernels.genomics.attention_inputs.attention_inputs`."""
    dim, value_dim = len(q_norm[0]), len(v_norm[0])
    q, k, v = x.split((x.shape[-1] - dim - value_dim, dim, value_dim), -1)
    q = _normalized(q.unflatten(-1, (-1, dim)), q_norm)
    return (
        _rotated(q, cos[:, None], sin[:, None]),
        _rotated(_normalized(k, k_norm), cos, sin),
        _normalized(v, v_norm),
    )


def _normalized(x: Tensor, norm: Norm) -> Tensor:
    weight, bias, eps = norm
    return layer_norm(x, weight.shape, weight, bias, eps)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2).to(x.dtype)
