"""Eigenvalues and eigenvectors of symmetric 3x3 matrices, by `torch.linalg.eigh`."""

from __future__ import annotations

import torch
from torch import Tensor


def symmetric_eigen(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Compute `mlff_triton.kernels.binding.symmetric_eigen.symmetric_eigen`."""
    values, vectors = torch.linalg.eigh(matrices)
    return values, vectors
