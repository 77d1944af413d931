"""Update of pairs by the scores of their bins, and inputs of the attention along rows of pairs.

    p_ij <- p_ij + W a_ij + b + y_i + z_j
    q, k, v = W' (p_ij / rms(p_ij)) + b'

Source: Ž. Avsec et al., "Advancing regulatory variant effect prediction with AlphaGenome",
https://doi.org/10.1038/s41586-025-10014-0.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common.blocks import block_side

_ROWS, _WARPS = 64, 4


@triton.jit
def inverse_rms(x, EPS: tl.constexpr):
    """Return one over the root mean square of each row of x [M, C], as [M, 1]."""
    return (1 / tl.sqrt(tl.sum(x * x, 1) / x.shape[1] + EPS))[:, None]


@triton.jit
def _pair_attention_inputs_fwd_kernel(
    scores_ptr,
    y_ptr,
    pair_ptr,
    weight_ptr,
    bias_ptr,
    qkv_weight_ptr,
    qkv_bias_ptr,
    out_ptr,
    qkv_ptr,
    n_pairs,
    n_bins,
    EPS: tl.constexpr,
    HEADS: tl.constexpr,
    C: tl.constexpr,
    H: tl.constexpr,
    M: tl.constexpr,
):
    """Write pairs [n_pairs, C] and qkv [n_pairs, 3 C].

    Reads scores [HEADS, n_pairs], y [B n_bins, 2 C], pairs or None, and weights [HEADS, C] and
    [C, 3 C]. Grid: (blocks of M pairs,).
    """
    pair = tl.program_id(0).to(tl.int64) * M + tl.arange(0, M)
    known = (pair < n_pairs)[:, None]
    head, column = tl.arange(0, H), tl.arange(0, C)
    i = pair // n_bins  # of all batches
    j = i // n_bins * n_bins + pair % n_bins
    scores = tl.load(
        scores_ptr + head[None, :].to(tl.int64) * n_pairs + pair[:, None],
        known & (head < HEADS)[None, :],
        other=0.0,
    )  # [M, H]
    weight = tl.load(
        weight_ptr + head[:, None] * C + column[None, :], (head < HEADS)[:, None], other=0.0
    )  # [H, C]
    x = tl.dot(scores, weight)
    x += tl.load(bias_ptr + column).to(tl.float32)[None, :]
    x += tl.load(y_ptr + i[:, None] * (2 * C) + column[None, :], known, other=0.0)
    x += tl.load(y_ptr + j[:, None] * (2 * C) + C + column[None, :], known, other=0.0)
    offsets = pair[:, None] * C + column[None, :]
    if pair_ptr is not None:
        x += tl.load(pair_ptr + offsets, known, other=0.0)
    tl.store(out_ptr + offsets, x, known)
    normalized = (x * inverse_rms(x, EPS)).to(qkv_ptr.dtype.element_ty)
    for part in tl.static_range(3):
        columns = part * C + column
        weight = tl.load(qkv_weight_ptr + column[:, None] * (3 * C) + columns[None, :])  # [C, C]
        y = tl.dot(normalized, weight) + tl.load(qkv_bias_ptr + columns).to(tl.float32)[None, :]
        pointers = qkv_ptr + pair[:, None] * (3 * C) + columns[None, :]
        tl.store(pointers, y.to(qkv_ptr.dtype.element_ty), known)


def pair_attention_inputs(
    scores: Tensor,
    y: Tensor,
    pair: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
) -> tuple[Tensor, Tensor]:
    """Add scores and terms of bins to pairs, and project the normalized pairs, without gradients.

    Parameters
    ----------
    scores : [H, B, P, P]
        Scores of pairs of bins, float16 or bfloat16.
    y : [B, P, 2 C]
        Terms of the first bin of a pair, then of the second one; of the dtype of ``scores``.
    pair : float32 [B, P, P, C] or None
        Pairs so far; zero if None. C is a power of two, 16 or more.
    weight, bias : [H, C], [C]
        Map of scores.
    eps : float
        Added to the mean square.
    qkv_weight, qkv_bias : [C, 3 C], [3 C]
        Map of normalized pairs, including the weight and bias of the normalization.

    Returns
    -------
    pair : float32 [B, P, P, C]
        New pairs.
    qkv : [B, P, P, 3 C]
        Queries, keys and values, of the dtype of ``scores``.
    """
    heads, batch, n_bins, _ = scores.shape
    channels = len(bias)
    new = scores.new_empty(batch, n_bins, n_bins, channels, dtype=torch.float32)
    qkv = scores.new_empty(batch, n_bins, n_bins, 3 * channels)
    n_pairs = batch * n_bins * n_bins
    with torch.cuda.device_of(scores):
        _pair_attention_inputs_fwd_kernel[(triton.cdiv(n_pairs, _ROWS),)](
            *(scores, y, pair, weight, bias, qkv_weight, qkv_bias, new, qkv),
            n_pairs,
            n_bins,
            EPS=eps,
            HEADS=heads,
            C=channels,
            H=block_side(heads),
            M=_ROWS,
            num_warps=_WARPS,
            num_stages=1,
        )
    return new, qkv
