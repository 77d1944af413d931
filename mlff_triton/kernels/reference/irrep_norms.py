"""Squared norms of the three parts of 3x3 tensors, in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.kernels.reference.decomposition import decompose


def irrep_norms(x: Tensor) -> Tensor:
    """``(3 I^2, 2 |a|^2, |S|_F^2)`` of ``X = I 1 + A(a) + S``: what TensorNet's readout takes.

    G. Simeon and G. De Fabritiis, NeurIPS 2023, https://arxiv.org/abs/2306.06482, section 3.

    Parameters
    ----------
    x : [9, N, F] or [N, 3, 3, F]
        Packed components or full tensors.

    Returns
    -------
    [N, 3 F]
    """
    packed = decompose(x) if x.ndim == 4 else x
    i, a0, a1, a2, s00, s01, s02, s11, s12 = packed.square().unbind(0)
    s22 = (packed[4] + packed[7]).square()
    norms = [3 * i, 2 * (a0 + a1 + a2), s00 + s11 + s22 + 2 * (s01 + s02 + s12)]
    return torch.cat(norms, 1)
