"""Conditioned updates of tokens and atoms, in plain PyTorch.

    y = (x - mean) / sqrt(variance + eps) sigmoid(scale) + shift      adaptive normalization
    x <- x + O (softmax(q k / sqrt(D) + b) v sigmoid(g)) sigmoid(gate)      q, k, v, g = W y
    x <- x + D (silu(G y) (U y)) sigmoid(gate)                        transition

Transitions of Boltz have a second factor (U' y).

Source: J. Abramson et al., "Accurate structure prediction of biomolecular interactions with
AlphaFold 3", https://doi.org/10.1038/s41586-024-07487-w, algorithms 24 to 26 of the supplement.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from torch import Tensor
from torch.nn.functional import linear, silu

from mlff_triton.kernels.numerics.split import SplitOperand
from mlff_triton.kernels.pairs.reference.pair_attention import pair_attention
from mlff_triton.kernels.pairs.reference.wide_rows import adaptive_norm
from mlff_triton.kernels.pairs.reference.window_attention import window_attention
from mlff_triton.kernels.pairs.types import (
    ConditionedAttentionWeights,
    ConditionedTransitionWeights,
    Conditions,
    WindowAttentionWeights,
    WindowConditions,
)


def conditioned_attention_(
    x: Tensor,
    conditions: Conditions,
    bias: Tensor,
    weights: ConditionedAttentionWeights,
    mask: Tensor | None = None,
) -> Tensor:
    """Compute `mlff_triton.kernels.pairs.conditioning.conditioned_attention_`."""
    return x.add_(conditioned_attention_update(x, conditions, bias, weights, mask))


def conditioned_attention_update(
    x: Tensor,
    conditions: Conditions,
    bias: Tensor,
    weights: ConditionedAttentionWeights,
    mask: Tensor | None = None,
) -> Tensor:
    """Return the update that `conditioned_attention_` adds."""
    scale, shift, gate, eps = conditions
    y = adaptive_norm(x, scale, shift, eps, x.dtype)
    inputs, bias_of_inputs, out = (
        _unsplit(weights.inputs),
        weights.inputs_bias,
        _unsplit(weights.out),
    )
    q, k, v, g = linear(y, inputs, bias_of_inputs).chunk(4, -1)
    q, k, v = (part.unflatten(-1, (bias.shape[-3], -1)) for part in (q, k, v))
    attend = window_attention if bias.dim() == 5 else pair_attention
    y = attend(q, k, v, bias, mask).flatten(3) * g.sigmoid()
    return linear(y, out) * gate.sigmoid()


def conditioned_transition_(
    x: Tensor, conditions: Conditions, weights: ConditionedTransitionWeights
) -> Tensor:
    """Compute `mlff_triton.kernels.pairs.conditioning.conditioned_transition_`."""
    return x.add_(conditioned_transition_update(x, conditions, weights))


def conditioned_transition_update(
    x: Tensor, conditions: Conditions, weights: ConditionedTransitionWeights
) -> Tensor:
    """Return the update that `conditioned_transition_` adds."""
    scale, shift, gate, eps = conditions
    inputs, down = map(_unsplit, weights)
    products = linear(adaptive_norm(x, scale, shift, eps, x.dtype), inputs)
    gates, *factors = products.split(down.shape[1], -1)
    return linear(prod(factors, start=silu(gates)), down) * gate.sigmoid()


def conditioned_layers_(
    x: Tensor,
    conditions: Sequence[Conditions],
    biases: Iterable[Tensor],
    layers: Sequence[tuple[ConditionedAttentionWeights, ConditionedTransitionWeights]],
    mask: Tensor | None = None,
) -> Tensor:
    """Compute `mlff_triton.kernels.pairs.conditioning.conditioned_layers_`."""
    pairs = zip(conditions[::2], conditions[1::2], strict=True)
    for (attention, transition), bias, (first, second) in zip(layers, biases, pairs, strict=True):
        conditioned_attention_(x, first, bias, attention, mask)
        conditioned_transition_(x, second, transition)
    return x


def conditioned_windows_(
    x: Tensor,
    conditions: WindowConditions,
    bias: Tensor,
    weights: WindowAttentionWeights,
    mask: Tensor | None = None,
    starts: Tensor | None = None,
) -> Tensor:
    """Compute `mlff_triton.kernels.pairs.conditioning.conditioned_windows_`."""
    return x.add_(conditioned_windows_update(x, conditions, bias, weights, mask, starts))


def conditioned_windows_update(
    x: Tensor,
    conditions: WindowConditions,
    bias: Tensor,
    weights: WindowAttentionWeights,
    mask: Tensor | None = None,
    starts: Tensor | None = None,
) -> Tensor:
    """Return the update that `conditioned_windows_` adds."""
    scale, shift, gate, key_scale, key_shift, eps = conditions
    queries, keys, out = map(_unsplit, (weights.queries, weights.keys, weights.out))
    y = adaptive_norm(x, scale, shift, eps, x.dtype)
    of_keys = adaptive_norm(y if weights.chained else x, key_scale, key_shift, eps, x.dtype)
    q, g = linear(y, queries, weights.queries_bias).chunk(2, -1)
    k, v = linear(of_keys, keys).chunk(2, -1)
    q, k, v = (part.unflatten(-1, (bias.shape[2], -1)) for part in (q, k, v))
    y = window_attention(q, k, v, bias, mask, starts=starts).flatten(3)
    update: Tensor = linear(y * g.sigmoid(), out) * gate.sigmoid()
    return update


def _unsplit(weight: Tensor | SplitOperand) -> Tensor:
    """Return a weight that is not split. Only kernels take halves."""
    assert isinstance(weight, Tensor)
    return weight
