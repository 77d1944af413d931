"""Unpacking of packed rows of tokens to padded batches, in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.kernels.ops.reference.layer_norm import layer_norm
from mlff_triton.kernels.types.norm import Norm


def unpack_rows(
    x: Tensor,
    row_of: Tensor,
    shape: tuple[int, int],
    *,
    shift: Tensor | None = None,
    norm: Norm | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Unpack as `mlff_triton.kernels.transformer.unpack_rows.unpack_rows` does."""
    known = row_of >= 0
    y = x[row_of[known].long()]
    if shift is not None:
        y = y + shift
    if norm is not None:
        y = layer_norm(y, *norm)
    out = y.new_zeros(len(row_of), x.shape[1], dtype=dtype)
    return out.masked_scatter(known[:, None], y.to(out.dtype)).view(*shape, x.shape[1])
