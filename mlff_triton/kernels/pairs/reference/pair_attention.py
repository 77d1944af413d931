"""Attention of rows of tokens that share the bias of every pair of tokens, in plain PyTorch.

    s_rij = scale q_ri . k_rj + bias_ij      out_ri = sum_j softmax_j(s_rij) v_rj

The sum is over the kept keys of a row, and zero without any.

Source: J. Abramson et al., "Accurate structure prediction of biomolecular interactions with
AlphaFold 3", https://doi.org/10.1038/s41586-024-07487-w, algorithms 14, 15 and 24 of the
supplement.
"""

from __future__ import annotations

import torch
from torch import Tensor


def pair_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor,
    mask: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """Compute `mlff_triton.kernels.pairs.pair_attention.pair_attention`."""
    q = q * (q.shape[-1] ** -0.5 if scale is None else scale)
    scores = torch.einsum("brihd,brjhd->brhij", q, k) + bias[:, None]
    if mask is None:
        return torch.einsum("brhij,brjhd->brihd", scores.softmax(-1).to(v.dtype), v)
    kept = (mask != 0)[:, :, None, None]
    weights = scores.masked_fill(~kept, -torch.inf).softmax(-1)
    weights = weights.masked_fill(~kept, 0.0)  # a row without kept keys is NaN
    return torch.einsum("brhij,brjhd->brihd", weights.to(v.dtype), v)


def triangle_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor,
    mask: Tensor | None = None,
    *,
    ending: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Compute `mlff_triton.kernels.pairs.pair_attention.triangle_attention`."""
    axes = "bkjhd" if ending else "bikhd"
    q = q * (q.shape[-1] ** -0.5 if scale is None else scale)
    scores = torch.einsum(f"bijhd,{axes}->bhijk", q, k)
    scores = scores + (bias[:, :, :, None] if ending else bias[:, :, None])
    if mask is not None:
        kept = (mask.transpose(1, 2)[:, None, None] if ending else mask[:, None, :, None]) != 0
        weights = scores.masked_fill(~kept, -torch.inf).softmax(-1).masked_fill(~kept, 0.0)
    else:
        weights = scores.softmax(-1)
    return torch.einsum(f"bhijk,{axes}->bijhd", weights.to(v.dtype), v)
