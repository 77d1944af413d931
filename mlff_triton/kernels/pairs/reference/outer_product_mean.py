"""Outer product mean in plain PyTorch.

    a, b = A norm(m), B norm(m)      n_ij = sum_s mask_si mask_sj
    z_ij <- z_ij + O (sum_s mask_si mask_sj a_si x b_sj) / max(n_ij, 1) + o

or, if a number is added to the count,

    z_ij <- z_ij + (O (sum_s mask_si mask_sj a_si x b_sj) + o) / (n_ij + eps)

Source: J. Abramson et al., "Accurate structure prediction of biomolecular interactions with
AlphaFold 3", https://doi.org/10.1038/s41586-024-07487-w, algorithm 9 of the supplement.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, linear

from mlff_triton.kernels.pairs.types import OuterProductWeights


def outer_product_mean_(
    z: Tensor,
    msa: Tensor,
    weights: OuterProductWeights,
    mask: Tensor | None = None,
    *,
    eps: float | None = None,
) -> Tensor:
    """Compute `mlff_triton.kernels.pairs.outer_product_mean.outer_product_mean_`."""
    return z.add_(outer_product_update(msa, weights, mask, eps=eps))


def outer_product_update(
    msa: Tensor,
    weights: OuterProductWeights,
    mask: Tensor | None = None,
    *,
    eps: float | None = None,
) -> Tensor:
    """Return the update that `outer_product_mean_` adds."""
    norm, left, right, out, out_bias = weights
    x = layer_norm(msa, msa.shape[-1:], *norm)
    kept = torch.ones_like(x[..., 0]) if mask is None else mask.to(x.dtype)
    a, b = linear(x, left) * kept[..., None], linear(x, right) * kept[..., None]
    products = torch.einsum("bsic,bsjd->bijcd", a, b).flatten(-2)
    counts = torch.einsum("bsi,bsj->bij", kept, kept)[..., None]
    if eps is None:
        return linear(products / counts.clamp(min=1), out, out_bias)
    return linear(products, out, out_bias) / (counts + eps)
