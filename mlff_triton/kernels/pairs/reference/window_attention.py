"""Attention of atoms within windows, in plain PyTorch.

    s_ij = scale q_i . k_j + bias_ij      out_i = sum_j softmax_j(s_ij) v_j

The sum is over the kept keys of the query's window, and zero without any.

Source: J. Abramson et al., "Accurate structure prediction of biomolecular interactions with
AlphaFold 3", https://doi.org/10.1038/s41586-024-07487-w, algorithm 7 of the supplement.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.kernels.pairs.reference.pair_attention import pair_attention


def window_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor,
    mask: Tensor | None = None,
    scale: float | None = None,
    starts: Tensor | None = None,
) -> Tensor:
    """Compute `mlff_triton.kernels.pairs.window_attention.window_attention`."""
    batches, rows, length = q.shape[:3]
    count, _, queries, keys = bias.shape[1:]
    if starts is None:
        starts = torch.arange(count, device=q.device) * queries - (keys - queries) // 2
    index = starts[:, None] + torch.arange(keys, device=q.device)  # of keys, [W, T]
    kept = ((index >= 0) & (index < length)).expand(batches, rows, -1, -1)
    index = index.clamp(0, length - 1)
    if mask is not None:
        kept = kept & (mask[:, :, index] != 0)
    windows = q.unflatten(2, (count, queries)), k[:, :, index], v[:, :, index], kept
    q, k, v, kept = (x.transpose(1, 2).flatten(0, 1) for x in windows)
    out = pair_attention(q, k, v, bias.flatten(0, 1), kept, scale)
    found: Tensor = out.unflatten(0, (batches, count)).transpose(1, 2).flatten(2, 3)
    return found
