"""Squared norms of the three parts of 3x3 tensors, in plain PyTorch."""

from __future__ import annotations

from torch import Tensor

from mlff_triton.kernels.common.reference.tensors import part_norms
from mlff_triton.kernels.ops.reference.decomposition import decompose


def irrep_norms(x: Tensor) -> Tensor:
    """Compute ``(3 I^2, 2 |a|^2, |S|_F^2)`` of ``X = I 1 + A(a) + S``.

    These are the inputs of TensorNet's readout: G. Simeon and G. De Fabritiis, NeurIPS 2023,
    https://arxiv.org/abs/2306.06482, section 3.

    The shapes are those of `mlff_triton.kernels.ops.irrep_norms.irrep_norms`.
    """
    packed = decompose(x) if x.ndim == 4 else x
    return part_norms(packed).transpose(0, 1).flatten(1)
