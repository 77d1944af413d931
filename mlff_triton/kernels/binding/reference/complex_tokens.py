"""Tokens of complexes: the parts that all frames share, in plain PyTorch.

part_t = group(t) + kind(t)      for the embedded atom, query, key and value
coordinates_t = axes^T (x_t - center)
"""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.kernels.binding.types import Layout, Tokens


def complex_tokens(
    positions: Tensor,
    kinds: Tensor,
    layout: Layout,
    centers: Tensor,
    axes: Tensor,
    groups: Tensor,
    kind_rows: Tensor,
) -> Tokens:
    """Compute `mlff_triton.kernels.binding.complex_tokens.complex_tokens`."""
    atom = layout.token.long()
    complex_ = atom // kinds.shape[1]
    slots = kinds.shape[1] // groups.shape[1]
    parts = groups.flatten(0, 1)[atom // slots] + kind_rows[kinds.flatten()[atom]]
    own = positions.flatten(0, 1)[atom]
    offsets = own.double() - centers[complex_]
    coordinates = torch.einsum("tj,tjk->kt", offsets, axes[complex_])
    return Tokens(own, coordinates.to(parts.dtype), *parts.unbind(1))
