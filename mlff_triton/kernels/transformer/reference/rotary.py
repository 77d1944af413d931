"""Rotary position embeddings of packed rows, in plain PyTorch.

    (a, b) <- (a cos - b sin, b cos + a sin)      angle = position * frequency

for pairs (a, b) of adjacent columns: J. Su et al., "RoFormer", https://arxiv.org/abs/2104.09864.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rotary(x: Tensor, cos: Tensor, sin: Tensor, position: Tensor, columns: int) -> Tensor:
    """Rotate all rows as `mlff_triton.kernels.transformer.rotary.rotary_` does, out of place."""
    a, b = x[:, :columns].unflatten(1, (-1, cos.shape[1], 2)).unbind(-1)  # [T, heads, D / 2]
    c, s = (table[position.long(), None] for table in (cos, sin))
    rotated = torch.stack([a * c - b * s, b * c + a * s], -1).flatten(1)
    return torch.cat([rotated, x[:, columns:]], 1)
