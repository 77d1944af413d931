"""Attention in sequence models of genomes, in plain PyTorch.

    relative   s_ij = (scale q_i + a) . k_j + (scale q_i + b) . r[j - i]
    capped     s_ij = cap tanh((scale q_i . k_j + bias[i / W, j / W]) / cap)

    out_i = sum_j softmax_j(s_ij) v_j

Biases of capped scores belong to pairs of bins of W positions.

Sources: Ž. Avsec et al., "Effective gene expression prediction from sequence by integrating
long-range interactions" (Enformer), https://doi.org/10.1038/s41592-021-01252-x; Ž. Avsec et al.,
"Advancing regulatory variant effect prediction with AlphaGenome",
https://doi.org/10.1038/s41586-025-10014-0.
"""

from __future__ import annotations

import torch
from torch import Tensor


def relative_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rel_k: Tensor,
    content_bias: Tensor,
    position_bias: Tensor,
    scale: float | None = None,
) -> Tensor:
    """Compute `mlff_triton.kernels.genomics.attention.relative_attention`."""
    length = q.shape[1]
    q = q * (q.shape[-1] ** -0.5 if scale is None else scale)
    step = torch.arange(length, device=q.device)
    offset = step - step[:, None] + length - 1
    position = torch.einsum("bihd,rhd->bhir", q + position_bias, rel_k)
    scores = torch.einsum("bihd,bjhd->bhij", q + content_bias, k)
    scores = scores + position.gather(3, offset.expand_as(scores))
    return torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v)


def capped_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pair_bias: Tensor,
    cap: float = 5.0,
    scale: float | None = None,
) -> Tensor:
    """Compute `mlff_triton.kernels.genomics.attention.capped_attention`."""
    width = q.shape[1] // pair_bias.shape[1]
    bias = pair_bias.repeat_interleave(width, 1).repeat_interleave(width, 2)
    scores = torch.einsum("bihd,bjd->bhij", q, k)
    scores = scores * (q.shape[-1] ** -0.5 if scale is None else scale) + bias.permute(0, 3, 1, 2)
    scores = cap * torch.tanh(scores / cap)
    return torch.einsum("bhij,bjd->bihd", scores.softmax(-1), v)
