"""Weights of the layers on representations of pairs, which kernels and references share."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from mlff_triton.kernels.numerics.split import SplitOperand
from mlff_triton.kernels.types.norm import Norm


class TriangleWeights(NamedTuple):
    """Weights of triangle multiplication with H hidden channels, which have one dtype.

    Attributes
    ----------
    norm_in, norm_out : Norm
        Normalizations of the C channels of pairs, and of the H channels of sums over triangles.
    project_in, gate_in : [2 H, C]
        Maps of normalized pairs to the two factors of H channels, the first one above the second,
        and to their gates.
    project_out : [C, H]
        Map of normalized sums to the update.
    gate_out : [C, C]
        Map of normalized pairs to the gates of the update.
    """

    norm_in: Norm
    norm_out: Norm
    project_in: Tensor
    gate_in: Tensor
    project_out: Tensor
    gate_out: Tensor


class TransitionWeights(NamedTuple):
    """Weights of a SwiGLU transition with K hidden channels, which have one dtype.

    Attributes
    ----------
    norm : Norm
        Normalization of the rows.
    gate, up : [K, C]
        Maps of normalized rows to the hidden channels: those that are activated, and their factors.
    down : [C, K]
        Map of the products to the update.
    """

    norm: Norm
    gate: Tensor
    up: Tensor
    down: Tensor


class TriangleAttentionWeights(NamedTuple):
    """Weights of triangle attention with H heads of D channels, which have one dtype.

    Attributes
    ----------
    norm : Norm
        Normalization of the pairs.
    query, key, value, gate : [H D, C]
        Maps of normalized pairs to queries, keys, values and gates.
    bias : [H, C]
        Map of normalized pairs to the biases of queries and keys.
    out : [C, H D]
        Map of gated outputs to the update.
    """

    norm: Norm
    query: Tensor
    key: Tensor
    value: Tensor
    gate: Tensor
    bias: Tensor
    out: Tensor


class TokenAttentionWeights(NamedTuple):
    """Weights of the attention of tokens with biases of pairs, which have one dtype.

    Attributes
    ----------
    norm : Norm
        Normalization of the tokens.
    query, key, value, gate : [H D, C]
        Maps of normalized tokens to queries, keys, values and gates.
    out : [C, H D]
        Map of gated outputs to the update.
    query_bias : [H D], optional
        Added to the queries.
    """

    norm: Norm
    query: Tensor
    key: Tensor
    value: Tensor
    gate: Tensor
    out: Tensor
    query_bias: Tensor | None = None


class AverageWeights(NamedTuple):
    """Weights of averages of alignments with H heads of D channels, which have one dtype.

    Attributes
    ----------
    norm, pair_norm : Norm
        Normalizations of the alignment and of the pairs.
    value, gate : [H D, C]
        Maps of the normalized alignment to values and gates.
    bias : [H, P]
        Map of normalized pairs to the logits of the weights.
    out : [C, H D]
        Map of gated averages to the update.
    """

    norm: Norm
    pair_norm: Norm
    value: Tensor
    gate: Tensor
    bias: Tensor
    out: Tensor


class OuterProductWeights(NamedTuple):
    """Weights of an outer product mean of K channels, which have one dtype.

    Attributes
    ----------
    norm : Norm
        Normalization of the alignment.
    left, right : [K, C]
        Maps of the normalized alignment to the first and the second factor.
    out : [P, K K]
        Map of outer products to the update of pairs. Channels of the second factor vary fastest.
    out_bias : [P], optional
        Added to the update.
    """

    norm: Norm
    left: Tensor
    right: Tensor
    out: Tensor
    out_bias: Tensor | None = None


class Conditions(NamedTuple):
    """Terms of the conditioning of one update of rows [B, R, S, C].

    Attributes
    ----------
    scale, shift : [B, R, S, C]
        Logits of the scales of normalized rows, and their shifts.
    gate : [B, R, S, C]
        Logits of the gates of the update.
    eps : float
        Added to the variances of rows.
    """

    scale: Tensor
    shift: Tensor
    gate: Tensor
    eps: float = 1e-5


class ConditionedAttentionWeights(NamedTuple):
    """Weights of conditioned attention with H heads of D channels.

    They have one dtype. Maps may be split for products in float32.

    Attributes
    ----------
    inputs : [4 H D, C]
        Maps of normalized rows to queries, keys, values and gates, one above the other.
    inputs_bias : [4 H D], optional
        Added to the results of ``inputs``.
    out : [C, H D]
        Map of gated outputs to the update.
    """

    inputs: Tensor | SplitOperand
    inputs_bias: Tensor | None
    out: Tensor | SplitOperand


class ConditionedTransitionWeights(NamedTuple):
    """Weights of a conditioned SwiGLU transition with K hidden channels.

    They have one dtype. Maps may be split for products in float32.

    Attributes
    ----------
    inputs : [2 K, C] or [3 K, C]
        Maps of normalized rows to the channels that are activated, and, below, to their factors:
        one, or the two of Boltz.
    down : [C, K]
        Map of the products to the update.
    """

    inputs: Tensor | SplitOperand
    down: Tensor | SplitOperand


class WindowConditions(NamedTuple):
    """Terms of the conditioning of attention within windows, of tokens as queries and as keys.

    Attributes
    ----------
    scale, shift : [B, R, S, C]
        Logits of the scales of normalized queries, and their shifts.
    gate : [B, R, S, C]
        Logits of the gates of the update.
    key_scale, key_shift : [B, R, S, C]
        Logits of the scales of normalized keys, and their shifts.
    eps : float
        Added to the variances.
    """

    scale: Tensor
    shift: Tensor
    gate: Tensor
    key_scale: Tensor
    key_shift: Tensor
    eps: float = 1e-5


class WindowAttentionWeights(NamedTuple):
    """Weights of attention within windows; keys have their own normalization.

    They have one dtype. Maps may be split for products in float32.

    Attributes
    ----------
    queries : [2 H D, C]
        Maps of queries to vectors and, below, to logits of the gates of attention outputs.
    queries_bias : [2 H D], optional
        Added to the results of ``queries``.
    keys : [2 H D, C]
        Maps of keys to vectors and, below, to values.
    out : [C, H D]
        Map of gated attention outputs to the update.
    chained : bool
        True if the normalization of keys reads normalized queries, as in Protenix.
    """

    queries: Tensor | SplitOperand
    queries_bias: Tensor | None
    keys: Tensor | SplitOperand
    out: Tensor | SplitOperand
    chained: bool = False
