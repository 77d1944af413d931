"""Softmax attention of the tokens of complexes in all eight frames, in plain PyTorch.

q_if = q_i + sum_k s_kf y_ik A_k      (k and v alike, with K_k and V_k)
out_if = sum_j softmax_j(q_if . k_jf) v_jf
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor

from mlff_triton.kernels.binding.types import FRAMES, Tokens


def frame_signs(like: Tensor) -> Tensor:
    """Return the signs of the axes in all frames [8, 3]."""
    bits = torch.arange(FRAMES)[:, None] >> torch.arange(3) & 1
    return (1 - 2 * bits).to(like)


def in_frames(part: Tensor, coordinates: Tensor, directions: Tensor) -> Tensor:
    """Return a part [T, C] plus coordinates [3, T] times directions [3, C], in frames [T, 8, C]."""
    signed = coordinates.T[:, None] * frame_signs(coordinates)
    return part[:, None] + signed @ directions


def frame_attention(
    tokens: Tokens, row_ptr: Tensor, max_length: int, directions: Tensor, n_heads: int
) -> Tensor:
    """Compute `mlff_triton.kernels.binding.frame_attention.frame_attention`, in any dtype.

    Keys and values of the tokens are [T, C].
    """
    del max_length
    parts = tokens.queries, tokens.keys, tokens.values
    q, k, v = (
        in_frames(part, tokens.coordinates, directions[1 + i]).unflatten(2, (n_heads, -1))
        for i, part in enumerate(parts)
    )
    out = torch.zeros_like(v)
    for first, last in pairwise(row_ptr.tolist()):
        rows = slice(first, last)
        scores = math.log(2) * torch.einsum("ifhd,jfhd->fhij", q[rows], k[rows])
        out[rows] = torch.einsum("fhij,jfhd->ifhd", scores.softmax(-1), v[rows])
    return out.flatten(2)
