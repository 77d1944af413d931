"""Updates of pairs and tokens by one block of a trunk, with weights from any package.

A block updates pairs by triangle multiplication and triangle attention, both in two directions, and
by a transition. It then updates tokens by attention with biases of pairs, and by a transition.

Source: J. Abramson et al., "Accurate structure prediction of biomolecular interactions with
AlphaFold 3", https://doi.org/10.1038/s41586-024-07487-w, algorithm 17 of the supplement.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from mlff_triton.bio.structure.operators import Operators
from mlff_triton.bio.weights import converted, wide_dtype
from mlff_triton.errors import InputError
from mlff_triton.kernels.types.norm import Norm
from mlff_triton.kernels.types.pair_stack import (
    TokenAttentionWeights,
    TransitionWeights,
    TriangleAttentionWeights,
    TriangleWeights,
)

Weights = TypeVar("Weights", bound=tuple[Any, ...])

PAIR_CHANNELS = (16, 32, 64, 128, 256)
MAX_TOKEN_CHANNELS = 512
MAX_HEAD_CHANNELS = 128


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


class BlockWeights(NamedTuple):
    """Weights of a block; those of tokens are None if it only updates pairs."""

    pairs: PairWeights
    tokens: TokenWeights | None


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
        if isinstance(part, tuple) and type(part) is not tuple:
            parts.append(_with_wide_norms(part, dtype))
        else:  # a plain tuple is a Norm
            parts.append(converted(part, wide_dtype(dtype) if type(part) is tuple else dtype))
    return type(weights)(*parts)


def check_sizes(weights: BlockWeights) -> None:
    """Raise unless kernels support the numbers of channels.

    Raises
    ------
    InputError
        If there are too many, or another number of channels in triangle multiplication than pairs.
    """
    pairs, tokens = weights
    channels = len(pairs.transition.down)
    if channels not in PAIR_CHANNELS:
        raise InputError(f"the pairs have {channels} channels: use 16, 32, 64, 128 or 256")
    for triangle in (pairs.outgoing, pairs.incoming):
        if len(triangle.project_in) != 2 * channels:
            raise InputError("triangle multiplication has another number of channels than pairs")
    heads = [(len(a.query), len(a.bias)) for a in (pairs.starting, pairs.ending)]
    if tokens is not None:
        channels = len(tokens.transition.down)
        if channels > MAX_TOKEN_CHANNELS:
            raise InputError(f"the tokens have {channels} channels: use at most 512")
        heads.append((len(tokens.attention.query), len(tokens.bias)))
    if any(width > MAX_HEAD_CHANNELS * count for width, count in heads):
        raise InputError(f"a head has more than {MAX_HEAD_CHANNELS} channels")


def update_pairs(
    operators: Operators, weights: PairWeights, z: Tensor, mask: Tensor | None
) -> Tensor:
    """Update pairs [B, N, N, C] in place, and return them.

    The mask [B, N, N] is 1 for pairs of two tokens that are not padding.
    """
    multiply, attend = operators.triangle_multiplication_, operators.triangle_attention_
    multiply(z, weights.outgoing, mask)
    multiply(z, weights.incoming, mask, incoming=True)
    attend(z, weights.starting, mask)
    attend(z, weights.ending, mask, ending=True, bias_of_ending=weights.bias_of_ending)
    return operators.transition_(z, weights.transition)


def update_tokens(
    operators: Operators, weights: TokenWeights, s: Tensor, z: Tensor, mask: Tensor | None
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
