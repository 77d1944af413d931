"""Updates of pairs and of tokens by gated attention with biases of pairs, in plain PyTorch.

    x = norm(z)      q, k, v, b = W x
    starting   o_ij = sum_k softmax_k(q_ij . k_ik / sqrt(D) + b_jk) v_ik
    ending     o_ij = sum_k softmax_k(q_ij . k_kj / sqrt(D) + b_ki) v_kj
    z_ij <- z_ij + O (o_ij sigmoid(G x_ij))

Source: J. Abramson et al., "Accurate structure prediction of biomolecular interactions with
AlphaFold 3", https://doi.org/10.1038/s41586-024-07487-w, algorithms 14, 15 and 24 of the
supplement.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor
from torch.nn.functional import layer_norm, linear

from mlff_triton.kernels.pairs.reference.pair_attention import pair_attention, triangle_attention
from mlff_triton.kernels.pairs.types import TokenAttentionWeights, TriangleAttentionWeights
from mlff_triton.kernels.types.norm import Norm


def triangle_attention_(
    z: Tensor,
    weights: TriangleAttentionWeights,
    mask: Tensor | None = None,
    *,
    ending: bool = False,
    bias_of_ending: Literal["key", "query"] = "key",
) -> Tensor:
    """Compute `mlff_triton.kernels.pairs.attention_update.triangle_attention_`."""
    update = triangle_attention_update(
        z, weights, mask, ending=ending, bias_of_ending=bias_of_ending
    )
    return z.add_(update)


def triangle_attention_update(
    z: Tensor,
    weights: TriangleAttentionWeights,
    mask: Tensor | None = None,
    *,
    ending: bool = False,
    bias_of_ending: Literal["key", "query"] = "key",
) -> Tensor:
    """Return the update that `triangle_attention_` adds."""
    norm, query, key, value, gate, bias, out = weights
    x = layer_norm(z, z.shape[-1:], *norm)
    q, k, v = (linear(x, w).unflatten(-1, (len(bias), -1)) for w in (query, key, value))
    biases = linear(x, bias).movedim(-1, 1)
    if ending and bias_of_ending == "key":
        biases = biases.mT
    y = triangle_attention(q, k, v, biases, mask, ending=ending).flatten(-2)
    return linear(y * linear(x, gate).sigmoid(), out)


def token_attention_(
    s: Tensor, bias: Tensor, weights: TokenAttentionWeights, mask: Tensor | None = None
) -> Tensor:
    """Compute `mlff_triton.kernels.pairs.attention_update.token_attention_`."""
    return s.add_(token_attention_update(s, bias, weights, mask))


def token_attention_update(
    s: Tensor, bias: Tensor, weights: TokenAttentionWeights, mask: Tensor | None = None
) -> Tensor:
    """Return the update that `token_attention_` adds."""
    norm, query, key, value, gate, out, query_bias = weights
    x, heads = layer_norm(s, s.shape[-1:], *norm), bias.shape[1]
    products = linear(x, query, query_bias), linear(x, key), linear(x, value)
    q, k, v = (product.unflatten(-1, (heads, -1)) for product in products)
    y = pair_attention(q, k, v, bias, mask).flatten(-2)
    return linear(y * linear(x, gate).sigmoid(), out)


def pair_biases(z: Tensor, norm: Norm, weight: Tensor, shift: Tensor | None = None) -> Tensor:
    """Compute `mlff_triton.kernels.pairs.attention_update.pair_biases`."""
    return linear(layer_norm(z, z.shape[-1:], *norm), weight, shift).movedim(-1, 1)
