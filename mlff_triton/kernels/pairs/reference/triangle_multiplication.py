"""Triangle multiplication in plain PyTorch.

    x = norm(z)      [a, b] = mask (W x) sigmoid(G x)
    outgoing   t_ij = sum_k a_ik b_jk
    incoming   t_ij = sum_k a_ki b_kj
    z_ij <- z_ij + (W' norm(t_ij)) sigmoid(G' x_ij)

Source: J. Abramson et al., "Accurate structure prediction of biomolecular interactions with
AlphaFold 3", https://doi.org/10.1038/s41586-024-07487-w, algorithms 12 and 13 of the supplement.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, linear

from mlff_triton.kernels.pairs.types import TriangleWeights


def triangle_multiplication_(
    z: Tensor,
    weights: TriangleWeights,
    mask: Tensor | None = None,
    *,
    incoming: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """Compute `mlff_triton.kernels.pairs.triangle_multiplication.triangle_multiplication_`."""
    update = triangle_update(z, weights, mask, incoming=incoming)
    return torch.add(z, update, out=z if out is None else out)


def triangle_update(
    z: Tensor, weights: TriangleWeights, mask: Tensor | None = None, *, incoming: bool = False
) -> Tensor:
    """Return the update that `triangle_multiplication_` adds."""
    norm_in, norm_out, project_in, gate_in, project_out, gate_out = weights
    x = layer_norm(z, z.shape[-1:], *norm_in)
    factors = linear(x, project_in) * linear(x, gate_in).sigmoid()
    if mask is not None:
        factors = factors * mask[..., None]
    a, b = factors.chunk(2, -1)
    sums = torch.einsum("bkic,bkjc->bijc" if incoming else "bikc,bjkc->bijc", a, b)
    update = linear(layer_norm(sums, sums.shape[-1:], *norm_out), project_out)
    return update * linear(x, gate_out).sigmoid()
