"""Tensors divided by their squared norms plus one, in plain PyTorch.

    Y = X / (|X|_F^2 + 1)

as at the beginning of TensorNet's interaction layers: G. Simeon and G. De Fabritiis, NeurIPS 2023,
https://arxiv.org/abs/2306.06482, section 3.
"""

from __future__ import annotations

from torch import Tensor

from mlff_triton.kernels.common.reference.tensors import part_norms


def normalized_tensors(x: Tensor) -> Tensor:
    """Compute `mlff_triton.kernels.ops.normalized_tensors.normalized_tensors`."""
    return x / (part_norms(x).sum(0) + 1)
