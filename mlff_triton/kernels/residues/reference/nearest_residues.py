"""Nearest neighbors of residues, in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

EPS = 1e-6  # Å^2, added to squared distances


def nearest_residues(positions: Tensor, mask: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Compute `mlff_triton.kernels.residues.nearest_residues.nearest_residues`."""
    offsets = positions[:, None] - positions[:, :, None]
    both = mask[:, None] * mask[:, :, None]
    distances = both * torch.sqrt((offsets**2).sum(3) + EPS)
    distances += (1 - both) * distances.amax(2, keepdim=True)
    nearest = distances.topk(count, 2, largest=False)
    first = torch.arange(0, mask.numel(), mask.shape[1], device=mask.device)
    return (nearest.indices + first[:, None, None]).int().flatten(0, 1), nearest.values.flatten(
        0, 1
    )
