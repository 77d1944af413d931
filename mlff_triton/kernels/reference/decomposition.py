"""3x3 tensors and their three parts, in plain PyTorch.

``X = I 1 + A(a) + S``: a multiple of the identity, a skew and a symmetric traceless matrix, the
parts that turn into themselves under rotation. G. Simeon and G. De Fabritiis, NeurIPS 2023,
https://arxiv.org/abs/2306.06482, equation 1.
"""

from __future__ import annotations

import torch
from torch import Tensor


def decompose(t: Tensor) -> Tensor:
    """Full tensors [N, 3, 3, F] -> packed components [9, N, F], as in `mlff_triton.irreps`."""
    t00, t01, t02, t10, t11, t12, t20, t21, t22 = t.flatten(1, 2).unbind(1)
    i = (t00 + t11 + t22) / 3
    return torch.stack(
        [
            i,
            (t21 - t12) / 2,
            (t02 - t20) / 2,
            (t10 - t01) / 2,
            t00 - i,
            (t01 + t10) / 2,
            (t02 + t20) / 2,
            t11 - i,
            (t12 + t21) / 2,
        ]
    )


def compose(x: Tensor) -> Tensor:
    """Packed components [9, N, F] -> full tensors [N, 3, 3, F]."""
    i, a0, a1, a2, s00, s01, s02, s11, s12 = x.unbind(0)
    entries = [
        i + s00,
        s01 - a2,
        s02 + a1,
        s01 + a2,
        i + s11,
        s12 - a0,
        s02 - a1,
        s12 + a0,
        i - s00 - s11,
    ]
    return torch.stack(entries, 1).view(x.shape[1], 3, 3, x.shape[2])


def decompose_tensor(t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Full tensors [N, 3, 3, F] -> their parts ``I 1``, ``A`` and ``S``, each [N, 3, 3, F]."""
    eye = torch.eye(3, dtype=t.dtype, device=t.device)[:, :, None]
    identity = t.diagonal(dim1=1, dim2=2).mean(-1)[:, None, None] * eye
    transposed = t.transpose(1, 2)
    return identity, (t - transposed) / 2, (t + transposed) / 2 - identity
