"""Decomposition of 3x3 tensors into their three parts, in plain PyTorch.

``X = I 1 + A(a) + S``: a multiple of the identity, a skew and a symmetric traceless matrix, which
rotations do not mix. G. Simeon and G. De Fabritiis, NeurIPS 2023,
https://arxiv.org/abs/2306.06482, equation 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.kernels.common.reference import tensors


def decompose(t: Tensor) -> Tensor:
    """Decompose full tensors [N, 3, 3, F] into components [9, N, F], as in `model.irreps`."""
    return tensors.decompose(t.movedim(0, 2))


def compose(x: Tensor) -> Tensor:
    """Compose full tensors [N, 3, 3, F] from packed components [9, N, F]."""
    return tensors.compose(x).movedim(2, 0)


def decompose_tensor(t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Split full tensors into their parts ``I 1``, ``A`` and ``S``, all [N, 3, 3, F]."""
    eye = torch.eye(3, dtype=t.dtype, device=t.device)[:, :, None]
    identity = t.diagonal(dim1=1, dim2=2).mean(-1)[:, None, None] * eye
    transposed = t.transpose(1, 2)
    return identity, (t - transposed) / 2, (t + transposed) / 2 - identity
