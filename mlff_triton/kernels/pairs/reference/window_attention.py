"""Attention of atoms within windows, in plain PyTorch.

    s_ij = scale q_i . k_j + bias_ij      out_i = sum_j softmax_j(s_ij) v_j

The sum is over the kept keys of the query's window, and zero without any.

Source: J. Abramson et al., "Accurate structure prediction of biomolecular interactions with
AlphaFold 3", https://doi.org/10.1038/s41586-024-07487-w, algorithm 7 of the supplement.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from mlff_triton.kernels.pairs.reference.pair_attention import pair_attention


def window_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor,
    mask: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """Compute `mlff_triton.kernels.pairs.window_attention.window_attention`."""
    batches, rows, length = q.shape[:3]
    queries, keys = bias.shape[-2:]
    kept = torch.ones_like(q[..., 0, 0]) if mask is None else (mask != 0).to(q.dtype)
    windows = (_windows(x, queries, keys) for x in (k, v, kept[..., None, None]))
    k, v, kept = (x.movedim(2, 1).flatten(0, 1) for x in windows)
    q = q.unflatten(2, (-1, queries)).movedim(2, 1).flatten(0, 1)
    out = pair_attention(q, k, v, bias.flatten(0, 1), kept[..., 0, 0], scale)
    out = out.view(batches, -1, *out.shape[1:]).movedim(1, 2)
    return out.reshape(batches, rows, length, *out.shape[4:])


def _windows(x: Tensor, queries: int, keys: int) -> Tensor:
    """Return the keys of all windows [B, R, W, T, H, D], with zeros beyond both ends."""
    beyond = (keys - queries) // 2
    padded = pad(x, (0, 0, 0, 0, beyond, beyond))
    windows: Tensor = padded.unfold(2, keys, queries).movedim(-1, 3)
    return windows
