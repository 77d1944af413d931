"""Attention and transitions of wide rows: the products, and the operations between them.

A library computes the products, except those of split maps, which `split_linear` computes. These
layers are for rows of many channels, such as tokens: few rows fill a GPU, and their weights do not
fit on chip.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from mlff_triton.kernels.common.hardware import allows_tf32
from mlff_triton.kernels.numerics.operands import takes_halves
from mlff_triton.kernels.numerics.split import SplitOperand
from mlff_triton.kernels.pairs.pair_attention import pair_attention
from mlff_triton.kernels.pairs.split_linear import split_linear, split_rows
from mlff_triton.kernels.pairs.types import (
    ConditionedAttentionWeights,
    ConditionedTransitionWeights,
    TokenAttentionWeights,
    TransitionWeights,
)
from mlff_triton.kernels.pairs.wide_rows import Map, gated_rows, normalized
from mlff_triton.kernels.pairs.window_attention import window_attention

_FEWEST_CHANNELS, _MOST_CHANNELS = 129, 4096
_ALIGNED = 8  # channels
_MOST_ROWS = 2**14  # beyond which hidden channels take much memory


def is_wide(x: Tensor, width: int) -> bool:
    """Return True if rows [..., C] are few and wide, with updates of ``width`` hidden channels."""
    channels = x.shape[-1]
    fits = not channels % _ALIGNED and not width % _ALIGNED and width <= _MOST_CHANNELS
    return fits and channels >= _FEWEST_CHANNELS and x[..., 0].numel() <= _MOST_ROWS


def wide_attention_(
    s: Tensor, bias: Tensor, weights: TokenAttentionWeights, mask: Tensor | None
) -> Tensor:
    """Update tokens [B, R, N, C] in place; see `token_attention_`."""
    norm, query, key, value, gate, out, query_bias = weights
    inputs = _operand(torch.cat([query, key, value, gate]))
    if query_bias is not None:
        query_bias = pad(query_bias, (0, 3 * len(query)))
    maps = ConditionedAttentionWeights(inputs, query_bias, _operand(out))
    return s.add_(attended(normalized(s, norm, inputs), bias, maps, mask))


def wide_transition_(x: Tensor, weights: TransitionWeights) -> Tensor:
    """Update contiguous rows [..., C] in place; see `transition_`."""
    norm, gate, up, down = weights
    rows = x.view(1, 1, -1, x.shape[-1])
    maps = ConditionedTransitionWeights(_operand(torch.cat([gate, up])), _operand(down))
    rows.add_(transformed(normalized(rows, norm, maps.inputs), maps))
    return x


def attended(
    y: Map, bias: Tensor, weights: ConditionedAttentionWeights, mask: Tensor | None
) -> Tensor:
    """Return the update of normalized rows by attention, before a gate from conditions."""
    inputs, inputs_bias, out = weights
    width, heads = high(out).shape[1], bias.shape[-3]
    products = product(y, inputs, inputs_bias)
    q, k, v = products[..., : 3 * width].unflatten(-1, (3, heads, width // heads)).unbind(-3)
    if bias.dim() == 5:
        found = window_attention(q, k, v, bias, mask)
    else:
        found = pair_attention(q, k, v, bias, mask)
    return product(gated_rows(found.flatten(3), products[..., 3 * width :], out), out)


def transformed(y: Map, weights: ConditionedTransitionWeights) -> Tensor:
    """Return the update of normalized rows by a transition, before a gate from conditions."""
    inputs, down = weights
    gate, up, *factors = product(y, inputs).split(high(down).shape[1], -1)
    factor = factors[0] if factors else None
    return product(gated_rows(up, gate, down, swish=True, factor=factor), down)


def product(x: Map, weight: Map, bias: Tensor | None = None) -> Tensor:
    """Apply a linear map to rows that have been rounded or split for it."""
    if isinstance(x, Tensor):
        assert isinstance(weight, Tensor)
        return linear(x, weight, bias)
    assert not isinstance(weight, Tensor)
    return split_linear(x, weight, bias)


def high(weight: Map) -> Tensor:
    """Return a weight, or its high half."""
    return weight if isinstance(weight, Tensor) else weight.high


def _operand(weight: Tensor) -> Tensor | SplitOperand:
    """Return a weight as products take it: split in float32, unless PyTorch may round to TF32."""
    return split_rows(weight) if takes_halves(weight) and not allows_tf32() else weight
