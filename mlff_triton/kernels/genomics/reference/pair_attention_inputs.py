"""Update of pairs by the scores of their bins, in plain PyTorch.

p_ij <- p_ij + W a_ij + b + y_i + z_j
q, k, v = W' (p_ij / rms(p_ij)) + b'
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import rms_norm


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
    """Compute `mlff_triton.kernels.genomics.pair_attention_inputs.pair_attention_inputs`."""
    first, second = y.chunk(2, -1)
    new = scores.permute(1, 2, 3, 0) @ weight + bias + first[:, :, None] + second[:, None]
    new = new.to(torch.promote_types(new.dtype, torch.float32))
    if pair is not None:
        new = pair + new
    return new, rms_norm(new, new.shape[-1:], None, eps).to(y.dtype) @ qkv_weight + qkv_bias
