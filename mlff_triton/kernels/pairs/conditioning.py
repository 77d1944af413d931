"""Conditioned updates of tokens and atoms: the layers of diffusion transformers.

    y = (x - mean) / sqrt(variance + eps) sigmoid(scale) + shift      adaptive normalization
    x <- x + O (softmax(q k / sqrt(D) + b) v sigmoid(g)) sigmoid(gate)      q, k, v, g = W y
    x <- x + D (silu(G y) (U y)) sigmoid(gate)                        transition

Transitions of Boltz have a second factor (U' y). Scales, shifts and gates are maps of the
conditioning, which does not change from layer to layer, so one product can compute them for all
layers. Samples can share them as expanded tensors. A library computes the products of these wide
layers, and the kernels here compute the operations between them.

Source: J. Abramson et al., "Accurate structure prediction of biomolecular interactions with
AlphaFold 3", https://doi.org/10.1038/s41586-024-07487-w, algorithms 24 to 26 of the supplement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.common.checks import check_shape
from mlff_triton.kernels.numerics.split import SplitOperand
from mlff_triton.kernels.pairs.arguments import FLOATS, head_width
from mlff_triton.kernels.pairs.split_linear import linear_map
from mlff_triton.kernels.pairs.types import (
    ConditionedAttentionWeights,
    ConditionedTransitionWeights,
    Conditions,
    WindowAttentionWeights,
    WindowConditions,
)
from mlff_triton.kernels.pairs.wide_layers import attended, high, product, transformed
from mlff_triton.kernels.pairs.wide_rows import (
    Map,
    Update,
    adapted,
    adaptive_norm,
    add_,
    gated_rows,
)
from mlff_triton.kernels.pairs.window_attention import window_attention


def conditioned_attention_(
    x: Tensor,
    conditions: Conditions,
    bias: Tensor,
    weights: ConditionedAttentionWeights,
    mask: Tensor | None = None,
) -> Tensor:
    """Update tokens of samples by conditioned attention in place, without gradients.

    Parameters
    ----------
    x : [B, R, S, C]
        Tokens of R samples; float32, or of the dtype of the weights. C is at most 4096.
    conditions : Conditions
        Terms of the conditioning, which samples may share as expanded tensors.
    bias : [B, H, S, S] or [B, W, H, Q, T]
        Biases of queries and keys, which samples share, finite, of a floating dtype; of all tokens,
        or of those in each window (see `window_attention`).
    weights : ConditionedAttentionWeights
        Weights, float16, bfloat16 or float32, or split. With float32 weights, linear maps follow
        PyTorch's setting of TF32; with split weights, they do not.
    mask : [B, R, S], optional
        Nonzero for tokens that are kept as keys; all by default.

    Returns
    -------
    [B, R, S, C]
        ``x``.

    Raises
    ------
    InputError
        If shapes, dtypes or devices do not fit together.
    BackendError
        If the tensors are not on a GPU.
    """
    _check_attention(x, bias, weights)
    y = adapted(x, conditions, weights.inputs)
    return add_(x, Update(attended(y, bias, weights, mask), conditions.gate))


def conditioned_transition_(
    x: Tensor, conditions: Conditions, weights: ConditionedTransitionWeights
) -> Tensor:
    """Update rows by a conditioned SwiGLU transition in place, without gradients.

    Parameters
    ----------
    x : [B, R, S, C]
        Tokens of R samples; float32, or of the dtype of the weights. C is at most 4096.
    conditions : Conditions
        Terms of the conditioning, which samples may share as expanded tensors.
    weights : ConditionedTransitionWeights
        Weights, float16, bfloat16 or float32, or split, with at most 4096 hidden channels.

    Returns
    -------
    [B, R, S, C]
        ``x``.

    Raises
    ------
    InputError
        If shapes, dtypes or devices do not fit together.
    BackendError
        If the tensors are not on a GPU.
    """
    _check_transition(x, weights)
    y = adapted(x, conditions, weights.inputs)
    return add_(x, Update(transformed(y, weights), conditions.gate))


def conditioned_layers_(
    x: Tensor,
    conditions: Sequence[Conditions],
    biases: Iterable[Tensor],
    layers: Sequence[tuple[ConditionedAttentionWeights, ConditionedTransitionWeights]],
    mask: Tensor | None = None,
) -> Tensor:
    """Update tokens of samples by layers of attention and transition in place, without gradients.

    The layers alternate between `conditioned_attention_` and `conditioned_transition_`. Each update
    is added while the rows are normalized for the next one.

    Parameters
    ----------
    x : [B, R, S, C]
        Tokens, as for `conditioned_attention_`.
    conditions : sequence of Conditions
        Terms of the conditioning of all updates, two for each layer.
    biases : iterable of [B, H, S, S]
        Biases of each layer.
    layers : sequence of tuples
        Weights of attention and transition of each layer.
    mask : [B, R, S], optional
        Nonzero for tokens that are kept as keys; all by default.

    Returns
    -------
    [B, R, S, C]
        ``x``.

    Raises
    ------
    InputError
        If shapes, dtypes or devices do not fit together.
    BackendError
        If the tensors are not on a GPU.
    """
    steps: list[tuple[Map, Callable[[Map], Tensor]]] = []
    for (attention, transition), bias in zip(layers, biases, strict=True):
        _check_attention(x, bias, attention)
        _check_transition(x, transition)
        attend = partial(attended, bias=bias, weights=attention, mask=mask)
        steps.append((attention.inputs, attend))
        steps.append((transition.inputs, partial(transformed, weights=transition)))
    update = None
    for terms, (inputs, compute) in zip(conditions, steps, strict=True):
        y = adapted(x, terms, inputs, update)
        update = Update(compute(y), terms.gate)
    return x if update is None else add_(x, update)


def conditioned_windows_(
    x: Tensor,
    conditions: WindowConditions,
    bias: Tensor,
    weights: WindowAttentionWeights,
    mask: Tensor | None = None,
    starts: Tensor | None = None,
) -> Tensor:
    """Update atoms of samples by conditioned attention within windows in place, without gradients.

    Keys have a normalization of their own. Vectors are computed once per atom, not once per window
    in which the atom is a key.

    Parameters
    ----------
    x : [B, R, W Q, C]
        Atoms of R samples; float32, or of the dtype of the weights. C is at most 4096.
    conditions : WindowConditions
        Terms of the conditioning, which samples may share as expanded tensors.
    bias : [B, W, H, Q, T]
        Biases of the queries and keys of each window (see `window_attention`).
    weights : WindowAttentionWeights
        Weights, float16, bfloat16 or float32, or split.
    mask : [B, R, W Q], optional
        Nonzero for atoms that are kept as keys; all by default.
    starts : int32 [W], optional
        First key of each window (see `window_attention`).

    Returns
    -------
    [B, R, W Q, C]
        ``x``.

    Raises
    ------
    InputError
        If shapes, dtypes or devices do not fit together.
    BackendError
        If the tensors are not on a GPU.
    """
    queries, queries_bias, keys, out, chained = weights
    check_shape("bias", bias, ("B", "W", "H", "Q", "T"))
    channels, heads = x.shape[-1], bias.shape[2]
    width = _check_maps("queries", queries, "out", out, channels) // 2
    _check_map("keys", keys, (2 * width, channels))
    _check_map("out", out, (channels, width))
    head_width("queries", width, heads)
    scale, shift, gate, key_scale, key_shift, eps = conditions
    rows = torch.float32 if isinstance(queries, SplitOperand) else queries.dtype
    y = adaptive_norm(x, scale, shift, eps, rows)
    of_keys = adaptive_norm(y if chained else x, key_scale, key_shift, eps, rows)
    q, g = linear_map(y, queries, queries_bias).chunk(2, -1)
    k, v = linear_map(of_keys, keys).chunk(2, -1)
    q, k, v = (part.unflatten(-1, (heads, -1)) for part in (q, k, v))
    y = window_attention(q, k, v, bias, mask, starts=starts).flatten(3)
    return add_(x, Update(product(gated_rows(y, g, out), out), gate))


def _check_attention(x: Tensor, bias: Tensor, weights: ConditionedAttentionWeights) -> None:
    """Check that weights of attention fit rows and biases."""
    inputs, _, out = weights
    channels, heads = x.shape[-1], bias.shape[-3]
    width = _check_maps("inputs", inputs, "out", out, channels) // 4
    _check_map("out", out, (channels, width))
    head_width("queries", width, heads)


def _check_transition(x: Tensor, weights: ConditionedTransitionWeights) -> None:
    """Check that weights of a transition fit rows."""
    inputs, down = weights
    rows = _check_maps("inputs", inputs, "down", down, x.shape[-1])
    hidden = high(down).shape[1]
    _check_map("down", down, (x.shape[-1], hidden))
    if rows not in (2 * hidden, 3 * hidden):
        raise InputError(f"inputs has {rows} rows: use 2 or 3 times {hidden}")


def _check_maps(first: str, inputs: Map, last: str, out: Map, channels: int) -> int:
    """Check that two maps have one dtype; return the number of rows of the first one.

    Split maps count as float32.
    """
    dtypes = {x.dtype if isinstance(x, Tensor) else torch.float32 for x in (inputs, out)}
    if len(dtypes) > 1 or not dtypes.issubset(FLOATS):
        raise InputError(f"{first} and {last} must be float16, bfloat16, or float32 or split")
    check_shape(first, high(inputs), ("rows", channels))
    return len(high(inputs))


def _check_map(name: str, weight: Map, shape: tuple[int, int]) -> None:
    check_shape(name, high(weight), shape)
