"""Scores of all pairs of bins, with terms that depend on their distance, in plain PyTorch.

a_ij = q_i . k_j + s_i[u(j - i)] + t_j[u(i - j)]
"""

from __future__ import annotations

import torch
from torch import Tensor


def pair_scores(x: Tensor, index: Tensor, heads: int, levels: int) -> Tensor:
    """Compute `mlff_triton.kernels.genomics.pair_scores.pair_scores`."""
    batch, n_bins, width = x.shape
    dim = width // heads // 2 - levels
    sizes = 2 * (heads * dim,) + 2 * (heads * levels,)
    q, k, s, t = (part.unflatten(2, (heads, -1)) for part in x.split(sizes, 2))
    step = torch.arange(n_bins, device=x.device)
    u = index.long()[step - step[:, None] + n_bins - 1]
    shape = heads, batch, n_bins, n_bins
    a: Tensor = torch.einsum("bihd,bjhd->hbij", q, k)
    a += s.permute(2, 0, 1, 3).gather(3, u.expand(shape))
    a += t.permute(2, 0, 1, 3).gather(3, u.expand(shape)).transpose(2, 3)
    return a
