"""Rotary position embeddings of packed rows, in plain PyTorch.

    (a, b) <- (a cos - b sin, b cos + a sin)      with position times frequency as the angle

for pairs that lie side by side: J. Su et al., "RoFormer", https://arxiv.org/abs/2104.09864.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rotary(x: Tensor, cos: Tensor, sin: Tensor, position: Tensor, columns: int) -> Tensor:
    """As `mlff_triton.kernels.transformer.rotary.rotary_`, of all rows and not in place."""
    a, b = x[:, :columns].unflatten(1, (-1, cos.shape[1], 2)).unbind(-1)  # [T, heads, D / 2]
    c, s = (table[position.long(), None] for table in (cos, sin))
    turned = torch.stack([a * c - b * s, b * c + a * s], -1).flatten(1)
    return torch.cat([turned, x[:, columns:]], 1)
