"""Averages of the rows of an alignment, weighted by pairs of tokens, in plain PyTorch.

    x = norm(m)      v = V x      w_ij = softmax_j(B norm'(z_ij))
    m_si <- m_si + O ((sum_j w_ij v_sj) sigmoid(G x_si))

Source: J. Abramson et al., "Accurate structure prediction of biomolecular interactions with
AlphaFold 3", https://doi.org/10.1038/s41586-024-07487-w, algorithm 10 of the supplement.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, linear

from mlff_triton.kernels.pairs.types import AverageWeights


def pair_average_(
    msa: Tensor, z: Tensor, weights: AverageWeights, mask: Tensor | None = None
) -> Tensor:
    """Compute `mlff_triton.kernels.pairs.pair_average.pair_average_`."""
    return msa.add_(pair_average_update(msa, z, weights, mask))


def pair_average_update(
    msa: Tensor, z: Tensor, weights: AverageWeights, mask: Tensor | None = None
) -> Tensor:
    """Return the update that `pair_average_` adds."""
    norm, pair_norm, value, gate, bias, out = weights
    x = layer_norm(msa, msa.shape[-1:], *norm)
    logits = linear(layer_norm(z, z.shape[-1:], *pair_norm), bias)  # [B, N, N, H]
    if mask is not None:
        logits = logits.masked_fill((mask == 0)[..., None], torch.finfo(logits.dtype).min)
    values = linear(x, value).unflatten(-1, (len(bias), -1))
    averages = torch.einsum("bijh,bsjhd->bsihd", logits.softmax(2), values).flatten(-2)
    return linear(averages * linear(x, gate).sigmoid(), out)
