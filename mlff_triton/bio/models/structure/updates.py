"""Updates by one block of a trunk, with weights from any package.

A block updates pairs by triangle multiplication and triangle attention, both in two directions, and
by a transition. It may then update tokens by attention with biases of pairs, and by a transition.
Blocks of alignments first update the alignment by averages weighted by pairs and by a transition,
and the pairs by an outer product mean.

Source: J. Abramson et al., "Accurate structure prediction of biomolecular interactions with
AlphaFold 3", https://doi.org/10.1038/s41586-024-07487-w, algorithms 8 and 17 of the supplement.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from mlff_triton.bio.core.weights import converted, wide_dtype
from mlff_triton.errors import InputError
from mlff_triton.kernels.pairs.protocol import PairOperators
from mlff_triton.kernels.pairs.types import (
    AverageWeights,
    OuterProductWeights,
    TokenAttentionWeights,
    TransitionWeights,
    TriangleAttentionWeights,
    TriangleWeights,
)
from mlff_triton.kernels.types.norm import Norm

Weights = TypeVar("Weights", bound=tuple[Any, ...])

PAIR_CHANNELS = (16, 32, 64, 128, 256)
MAX_TOKEN_CHANNELS = 512
MAX_HEAD_CHANNELS = 128
FACTOR_CHANNELS = (8, 16, 32, 64)


class PairWeights(NamedTuple):
    """Weights of the updates of pairs, in order.

    Attributes
    ----------
    outgoing, incoming : TriangleWeights
        Triangle multiplication.
    starting, ending : TriangleAttentionWeights
        Triangle attention.
    transition : TransitionWeights
        Transition.
    bias_of_ending : {"key", "query"}
        Pair whose bias is added at the ending node, see `triangle_attention_`.
    """

    outgoing: TriangleWeights
    incoming: TriangleWeights
    starting: TriangleAttentionWeights
    ending: TriangleAttentionWeights
    transition: TransitionWeights
    bias_of_ending: Literal["key", "query"] = "key"


class TokenWeights(NamedTuple):
    """Weights of the updates of tokens.

    Attributes
    ----------
    attention : TokenAttentionWeights
        Attention.
    bias_norm : Norm
        Normalization of the pairs that biases are computed from.
    bias : [H, C]
        Map of normalized pairs to biases of H heads.
    transition : TransitionWeights
        Transition.
    last_norm : Norm, optional
        Normalization of the result.
    """

    attention: TokenAttentionWeights
    bias_norm: Norm
    bias: Tensor
    transition: TransitionWeights
    last_norm: Norm | None = None


class MSAWeights(NamedTuple):
    """Weights of the updates of an alignment, and of pairs by it.

    Attributes
    ----------
    outer_product : OuterProductWeights
        Outer product mean.
    average : AverageWeights, optional
        Averages weighted by pairs; None if the alignment stays as it is.
    transition : TransitionWeights, optional
        Transition of the alignment, with the averages.
    pairs_first : bool
        True if pairs are updated before the alignment.
    eps : float, optional
        Added to the counts of sequences, see `outer_product_mean_`.
    averages_all : bool
        True if averages take no mask, as in Protenix.
    """

    outer_product: OuterProductWeights
    average: AverageWeights | None
    transition: TransitionWeights | None
    pairs_first: bool = False
    eps: float | None = None
    averages_all: bool = False


class BlockWeights(NamedTuple):
    """Weights of a block; those of tokens are None if it only updates pairs."""

    pairs: PairWeights
    tokens: TokenWeights | MSAWeights | None


def prepared(weights: Weights, dtype: torch.dtype, backend: str | None) -> Weights:
    """Convert weights for a backend. Kernels read the weights of normalizations in float32.

    Raises
    ------
    InputError
        If the kernels do not support the dtype.
    """
    if backend != "triton":
        return converted(weights, dtype)
    if dtype == torch.float64:
        raise InputError("its parameters are float64; kernels compute in float32 or less")
    return _with_wide_norms(weights, dtype)


def _with_wide_norms(weights: Weights, dtype: torch.dtype) -> Weights:
    parts: list[Any] = []
    for part in weights:
        if isinstance(part, list):
            parts.append([_with_wide_norms(each, dtype) for each in part])
        elif isinstance(part, tuple) and type(part) is not tuple:
            parts.append(_with_wide_norms(part, dtype))
        else:  # a plain tuple is a Norm
            parts.append(converted(part, wide_dtype(dtype) if type(part) is tuple else dtype))
    return type(weights)(*parts)


def row_dtype(backend: str | None, result: torch.dtype, products: torch.dtype) -> torch.dtype:
    """Return the dtype in which rows are updated: float32, unless results are rounded anyway.

    Kernels read rows in float32 or in the dtype of products, which is that of the weights. PyTorch
    reads them in the dtype of products alone.
    """
    return products if backend != "triton" or result == products else torch.float32


def check_sizes(weights: BlockWeights) -> None:
    """Check that kernels support the numbers of channels.

    Raises
    ------
    InputError
        If there are too many, or no power of two in triangle multiplication or pairs.
    """
    pairs, tokens = weights
    widths = {"the pairs have": len(pairs.transition.down)}
    for name, triangle in (("outgoing", pairs.outgoing), ("incoming", pairs.incoming)):
        widths[f"sums over {name} edges have"] = triangle.project_out.shape[1]
    for name, channels in widths.items():
        if channels not in PAIR_CHANNELS:
            raise InputError(f"{name} {channels} channels: use 16, 32, 64, 128 or 256")
    heads = [(len(a.query), len(a.bias)) for a in (pairs.starting, pairs.ending)]
    if isinstance(tokens, MSAWeights):
        channels = len(tokens.outer_product.norm[0])
        factors = len(tokens.outer_product.left)
        if factors not in FACTOR_CHANNELS:
            raise InputError(f"outer products are of {factors} channels: use 8, 16, 32 or 64")
    elif tokens is not None:
        channels = len(tokens.transition.down)
        heads.append((len(tokens.attention.query), len(tokens.bias)))
    if channels > MAX_TOKEN_CHANNELS:
        raise InputError(f"the tokens have {channels} channels: use at most 512")
    if any(width > MAX_HEAD_CHANNELS * count for width, count in heads):
        raise InputError(f"a head has more than {MAX_HEAD_CHANNELS} channels")


def update_pairs(
    operators: PairOperators,
    weights: PairWeights,
    z: Tensor,
    mask: Tensor | None,
    out: Tensor | None = None,
    *,
    begun: bool = False,
) -> Tensor:
    """Update pairs [B, N, N, C] and return them, in place or, if it is given, in another tensor.

    The mask [B, N, N] is 1 for pairs of two tokens that are not padding. If the updates have
    ``begun``, the first of them is left out.
    """
    multiply, attend = operators.triangle_multiplication_, operators.triangle_attention_
    if not begun:
        z = multiply(z, weights.outgoing, mask, out=out)
    multiply(z, weights.incoming, mask, incoming=True)
    attend(z, weights.starting, mask)
    attend(z, weights.ending, mask, ending=True, bias_of_ending=weights.bias_of_ending)
    return operators.transition_(z, weights.transition)


def update_tokens(
    operators: PairOperators, weights: TokenWeights, s: Tensor, z: Tensor, mask: Tensor | None
) -> Tensor:
    """Update tokens [B, N, C], in place where possible, and return them.

    The mask [B, N] is 1 for tokens that are not padding. ``z`` is [B, N, N, P].
    """
    bias = operators.pair_biases(z, weights.bias_norm, weights.bias)
    kept = None if mask is None else mask[:, None]
    operators.token_attention_(s[:, None], bias, weights.attention, kept)
    operators.transition_(s, weights.transition)
    norm = weights.last_norm
    return s if norm is None else layer_norm(s, s.shape[-1:], *norm)


def update_msa(
    operators: PairOperators,
    weights: MSAWeights,
    msa: Tensor,
    z: Tensor,
    mask: Tensor | None,
    pair_mask: Tensor | None,
) -> None:
    """Update an alignment [B, S, N, C] and pairs [B, N, N, P] in place.

    The masks are 1 for what is not padding: [B, S, N] for the alignment, [B, N, N] for pairs.
    """
    outer, eps = weights.outer_product, weights.eps
    if weights.pairs_first:
        operators.outer_product_mean_(z, msa, outer, mask, eps=eps)
    if weights.average is not None:
        kept = None if weights.averages_all else pair_mask
        operators.pair_average_(msa, z, weights.average, kept)
        assert weights.transition is not None
        operators.transition_(msa, weights.transition)
    if not weights.pairs_first:
        operators.outer_product_mean_(z, msa, outer, mask, eps=eps)
