"""Pairs after attention along rows and an MLP, and attention biases, in plain PyTorch.

p <- p + attended
p <- p + W2 relu(W1 (p / rms(p)) + b1) + b2
bias_n = W_n gelu(s_n p + t_n)      for one or several layers n
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import gelu, relu, rms_norm

from mlff_triton.kernels.genomics.types import PairBiases, PairMLP


def pair_mlp(
    pair: Tensor, attended: Tensor, eps: float, mlp: PairMLP, biases: PairBiases
) -> tuple[Tensor, Tensor]:
    """Compute `mlff_triton.kernels.genomics.pair_mlp.pair_mlp`."""
    pair = pair + attended
    normalized = rms_norm(pair, pair.shape[-1:], None, eps).to(attended.dtype)
    hidden = relu(normalized @ mlp.up + mlp.up_bias)
    pair = pair + hidden @ mlp.down + mlp.down_bias
    layers = zip(*biases, strict=True)
    out = [gelu(pair * s + t).to(attended.dtype) @ weight for s, t, weight in layers]
    return pair, torch.stack(out)
