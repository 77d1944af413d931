"""Scores of all pairs of bins, with terms that depend on their distance, in AlphaGenome.

    a_ij = q_i . k_j + s_i[u(j - i)] + t_j[u(i - j)]

The model multiplies queries and keys by an encoding of the distance. The encoding takes few
different values, as its features are thresholds, so s and t hold the products with each of these,
and u is the index of a distance among them.

Source: Ž. Avsec et al., "Advancing regulatory variant effect prediction with AlphaGenome",
https://doi.org/10.1038/s41586-025-10014-0.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_SMALL, _LARGE = 32, 64  # sides of a block
_MANY_BINS = 128


@triton.jit
def _pair_scores_fwd_kernel(
    x_ptr,
    index_ptr,
    scores_ptr,
    n_bins,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    LEVELS: tl.constexpr,
    N: tl.constexpr,
):
    """Write scores [HEADS, B, n_bins, n_bins].

    Reads x [B, n_bins, HEADS (2 DIM + 2 LEVELS)], which are q, k, s and t, and the index
    [2 n_bins - 1] of distances. Grid: (blocks of N columns, blocks of N rows, HEADS B).
    """
    head, batch = tl.program_id(2) % HEADS, (tl.program_id(2) // HEADS).to(tl.int64)
    n_batches = tl.num_programs(2) // HEADS
    i, j = tl.program_id(1) * N + tl.arange(0, N), tl.program_id(0) * N + tl.arange(0, N)
    dim = tl.arange(0, DIM)
    stride: tl.constexpr = HEADS * (2 * DIM + 2 * LEVELS)
    x_ptr += batch * n_bins * stride
    q = tl.load(
        x_ptr + i[:, None] * stride + head * DIM + dim[None, :], (i < n_bins)[:, None], other=0.0
    )  # [N, DIM]
    k = tl.load(
        x_ptr + j[:, None] * stride + (HEADS + head) * DIM + dim[None, :],
        (j < n_bins)[:, None],
        other=0.0,
    )  # [N, DIM]
    mask = (i < n_bins)[:, None] & (j < n_bins)[None, :]
    distance = j[None, :] - i[:, None] + n_bins - 1
    forward = tl.load(index_ptr + distance, mask, other=0)
    backward = tl.load(index_ptr + 2 * (n_bins - 1) - distance, mask, other=0)
    s_ptr = x_ptr + 2 * HEADS * DIM + head * LEVELS
    t_ptr = s_ptr + HEADS * LEVELS
    a = tl.dot(q, k.T)
    a += tl.load(s_ptr + i[:, None] * stride + forward, mask, other=0.0).to(tl.float32)
    a += tl.load(t_ptr + j[None, :] * stride + backward, mask, other=0.0).to(tl.float32)
    scores_ptr += (head * n_batches + batch) * n_bins * n_bins
    pointers = scores_ptr + i[:, None] * n_bins + j[None, :]
    tl.store(pointers, a.to(scores_ptr.dtype.element_ty), mask)


def pair_scores(x: Tensor, index: Tensor, heads: int, levels: int) -> Tensor:
    """Compute the scores of all pairs of bins, without gradients.

    Parameters
    ----------
    x : [B, P, H (2 D + 2 U)]
        q, k, s and t of each bin, each for all heads in order; float16 or bfloat16, contiguous. D
        is a power of two, 16 or more.
    index : int32 [2 P - 1]
        Index u of each distance from 1 - P to P - 1, below U.
    heads, levels : int
        H and U.

    Returns
    -------
    [H, B, P, P]
        Scores, of the dtype of ``x``.
    """
    batch, n_bins, width = x.shape
    scores = x.new_empty(heads, batch, n_bins, n_bins)
    side = _LARGE if n_bins > _MANY_BINS else _SMALL
    blocks = triton.cdiv(n_bins, side)
    with torch.cuda.device_of(x):
        _pair_scores_fwd_kernel[(blocks, blocks, heads * batch)](
            *(x, index, scores),
            n_bins,
            HEADS=heads,
            DIM=(width // heads - 2 * levels) // 2,
            LEVELS=levels,
            N=side,
            num_warps=4,
        )
    return scores
