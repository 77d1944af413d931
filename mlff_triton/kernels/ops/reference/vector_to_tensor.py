"""3x3 tensors of vectors, in plain PyTorch.

G. Simeon and G. De Fabritiis, NeurIPS 2023, https://arxiv.org/abs/2306.06482, section 3.
"""

from __future__ import annotations

import torch
from torch import Tensor


def vector_to_symmetric(v: Tensor, factors: Tensor | None = None) -> Tensor:
    """Compute ``v v^T - |v|^2 / 3``, symmetric and traceless, times one factor per channel.

    The shapes are those of `mlff_triton.kernels.ops.vector_to_tensor.vector_to_symmetric`.
    """
    eye = torch.eye(3, dtype=v.dtype, device=v.device)
    t = v[:, :, None] * v[:, None, :] - (v.square().sum(1) / 3)[:, None, None] * eye
    return t if factors is None else t[..., None] * factors[:, None, None]


def vector_to_skew(v: Tensor, factors: Tensor | None = None) -> Tensor:
    """Compute ``A`` with ``A u = v x u``, times one factor per channel.

    Shapes are those of `vector_to_symmetric`.
    """
    v0, v1, v2 = v.unbind(1)
    zero = torch.zeros_like(v0)
    entries = [zero, -v2, v1, v2, zero, -v0, -v1, v0, zero]
    t = torch.stack(entries, 1).view(-1, 3, 3)
    return t if factors is None else t[..., None] * factors[:, None, None]
