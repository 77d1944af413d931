"""Rows between the products of conditioned updates, in plain PyTorch.

    y = (x - mean) / sqrt(variance + eps) sigmoid(scale) + shift      adaptive normalization

Source: J. Abramson et al., "Accurate structure prediction of biomolecular interactions with
AlphaFold 3", https://doi.org/10.1038/s41586-024-07487-w, algorithms 24 to 26 of the supplement.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import layer_norm


def adaptive_norm(
    x: Tensor, scale: Tensor, shift: Tensor, eps: float, dtype: torch.dtype
) -> Tensor:
    """Compute `mlff_triton.kernels.pairs.wide_rows.adaptive_norm`."""
    return (layer_norm(x, x.shape[-1:], eps=eps) * scale.sigmoid() + shift).to(dtype)
