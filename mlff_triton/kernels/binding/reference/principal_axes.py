"""Centers and principal axes of complexes, in plain PyTorch.

    center = mean_k(x_k)      C = sum_k (x_k - center) (x_k - center)^T      axes = eigenvectors(C)

Source: O. Puny et al., "Frame Averaging for Invariant and Equivariant Network Design",
https://arxiv.org/abs/2110.03336.
"""

from __future__ import annotations

from torch import Tensor

from mlff_triton.kernels.binding.reference.symmetric_eigen import symmetric_eigen


def principal_axes(positions: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """Compute `mlff_triton.kernels.binding.principal_axes.principal_axes`."""
    positions, kept = positions.double(), kept.double()[..., None]
    centers = (positions * kept).sum(1) / kept.sum(1).clamp(min=1)
    centered = positions - centers[:, None] * kept
    return centers, symmetric_eigen(centered.mT @ centered)[1]
