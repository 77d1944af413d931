"""Softmax attention over packed sequences, in plain PyTorch, sequence by sequence."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    row_ptr: Tensor,
    max_length: int,
    bias: Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Compute `mlff_triton.kernels.ops.attention.attention`."""
    n_sequences, heads = len(row_ptr) - 1, q.shape[1]
    scale = 1 / math.sqrt(q.shape[2]) if scale is None else scale
    k, v = (x.repeat_interleave(heads // x.shape[1], 1) for x in (k, v))
    if bias is not None:
        bias = bias.expand(n_sequences, heads, max_length, max_length)
    outputs = [q.new_zeros(0, heads, v.shape[2])]
    for b, (first, last) in enumerate(pairwise(row_ptr.tolist())):
        rows, length = slice(first, last), last - first
        scores = scale * torch.einsum("ihd,jhd->hij", q[rows], k[rows])
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        if bias is not None:
            scores = scores + bias[b, :, :length, :length]
        outputs.append(torch.einsum("hij,jhd->ihd", scores.softmax(-1), v[rows]))
    outputs.append(q.new_zeros(len(q) - int(row_ptr[-1]), heads, v.shape[2]))
    return torch.cat(outputs)
