"""Updates of the tokens of samples by a diffusion transformer, with conditions for each token.

Source: J. Abramson et al., "Accurate structure prediction of biomolecular interactions with
AlphaFold 3", https://doi.org/10.1038/s41586-024-07487-w, algorithms 23 to 26 of the supplement.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from mlff_triton.bio.models.structure.updates import MAX_HEAD_CHANNELS, Weights, prepared
from mlff_triton.errors import InputError
from mlff_triton.kernels.numerics.split import SplitOperand
from mlff_triton.kernels.pairs.protocol import PairOperators
from mlff_triton.kernels.pairs.types import (
    ConditionedAttentionWeights,
    ConditionedTransitionWeights,
    Conditions,
    WindowAttentionWeights,
    WindowConditions,
)
from mlff_triton.kernels.types.norm import Norm

_ALIGNED = 8  # channels of maps that can be split
_WIDE = 128  # channels from which products of halves are more exact than those in float32
_MAX_CHANNELS = 4096


class ConditionMaps(NamedTuple):
    """Maps of the conditions of U updates of tokens, the maps of one above those of the next.

    Attributes
    ----------
    norm, norm_bias : [U 2 C, S], [U 2 C]
        Maps of normalized conditions to logits of scales and, below, to shifts.
    gate, gate_bias : [U C, S], [U C]
        Maps of conditions to logits of the gates of updates.
    norm_eps, eps : float
        Added to the variances of conditions, and of tokens.
    """

    norm: Tensor | SplitOperand
    norm_bias: Tensor
    gate: Tensor | SplitOperand
    gate_bias: Tensor
    norm_eps: float
    eps: float


class DiffusionLayer(NamedTuple):
    """Weights of a layer.

    Attributes
    ----------
    heads : int
        Number of heads of attention.
    attention_conditions, transition_conditions : ConditionMaps
        Maps of the conditions of both updates.
    attention : ConditionedAttentionWeights or WindowAttentionWeights
        Attention.
    transition : ConditionedTransitionWeights
        Transition, with one factor or the two of Boltz.
    last_norm : Norm, optional
        Normalization of the result.
    key_conditions : ConditionMaps, optional
        Maps of the conditions of keys, without gates, for `WindowAttentionWeights`.
    """

    heads: int
    attention_conditions: ConditionMaps
    transition_conditions: ConditionMaps
    attention: ConditionedAttentionWeights | WindowAttentionWeights
    transition: ConditionedTransitionWeights
    last_norm: Norm | None = None
    key_conditions: ConditionMaps | None = None


class Updates(NamedTuple):
    """Weights of the updates of tokens by a layer, without the maps of its conditions."""

    attention: ConditionedAttentionWeights | WindowAttentionWeights
    transition: ConditionedTransitionWeights
    last_norm: Norm | None


class DiffusionWeights(NamedTuple):
    """Weights of a diffusion transformer.

    Attributes
    ----------
    conditions : ConditionMaps
        Maps of the conditions of all updates, alternately of attention and transition.
    layers : list of Updates
        Other weights of each layer.
    """

    conditions: ConditionMaps
    layers: list[Updates]

    @classmethod
    def of(
        cls,
        layers: Sequence[DiffusionLayer],
        dtype: torch.dtype,
        backend: str | None,
        *,
        split: bool = True,
    ) -> DiffusionWeights:
        """Stack the maps of conditions, and convert all weights for a backend.

        Wide maps are split for kernels that compute in float32, unless ``split`` is False.

        Raises
        ------
        InputError
            If kernels do not support the dtype or the number of channels.
        """
        for layer in layers:
            channels = len(layer.attention.out)
            if channels > _MAX_CHANNELS or channels > MAX_HEAD_CHANNELS * layer.heads:
                raise InputError(f"{channels} channels in {layer.heads} heads are too many")
        maps = [m for x in layers for m in (x.attention_conditions, x.transition_conditions)]
        updates = [Updates(x.attention, x.transition, x.last_norm) for x in layers]
        convert = prepared_maps if split else prepared
        return convert(cls(stacked(maps), updates), dtype, backend)


def prepared_maps(weights: Weights, dtype: torch.dtype, backend: str | None) -> Weights:
    """Convert weights for a backend. Kernels multiply by halves of wide maps in float32.

    Raises
    ------
    InputError
        If the kernels do not support the dtype.
    """
    found = prepared(weights, dtype, backend)
    return _split(found) if backend == "triton" and dtype == torch.float32 else found


def _split(value: Any) -> Any:
    if isinstance(value, Tensor):
        gains = value.dim() == 2 and value.shape[1] >= _WIDE and not value.shape[1] % _ALIGNED
        return SplitOperand.of(value) if gains else value
    if isinstance(value, list):
        return list(map(_split, value))
    is_done = type(value) in (tuple, SplitOperand)  # a plain tuple is a Norm
    if isinstance(value, tuple) and not is_done:
        return type(value)(*map(_split, value))
    return value


def condition_maps(
    norm: Norm,
    scale: tuple[Tensor, Tensor],
    shift: Tensor,
    gate: tuple[Tensor, Tensor],
    eps: float,
) -> ConditionMaps:
    """Fold the scale of the conditions' normalization into the maps that read it, in float64."""
    weight, _, norm_eps = norm
    maps = torch.cat([scale[0], shift]) * weight
    biases = torch.cat([scale[1], torch.zeros_like(scale[1])])
    return ConditionMaps(maps, biases, *gate, norm_eps, eps)


def stacked(maps: Sequence[ConditionMaps]) -> ConditionMaps:
    """Join the maps of several updates.

    Raises
    ------
    InputError
        If normalizations add different values to variances.
    """
    norms, norm_biases, gates, gate_biases, norm_eps, eps = map(list, zip(*maps, strict=True))
    if len(set(norm_eps)) > 1 or len(set(eps)) > 1:
        raise InputError("the normalizations of its layers add different values to variances")
    return ConditionMaps(
        *(torch.cat(norms), torch.cat(norm_biases), torch.cat(gates), torch.cat(gate_biases)),
        *(norm_eps[0], eps[0]),
    )


def all_conditions(
    operators: PairOperators, maps: ConditionMaps, conditions: Tensor, samples: int, updates: int
) -> list[Conditions]:
    """Compute the terms of all updates by two products.

    Parameters
    ----------
    operators : PairOperators
        Operators of a backend.
    maps : ConditionMaps
        Maps of all updates.
    conditions : [B, R, N, S] or [B, 1, N, S]
        Conditions of tokens, which samples may share.
    samples, updates : int
        Number R of samples, and of updates.
    """
    rows = layer_norm(conditions, conditions.shape[-1:], eps=maps.norm_eps)
    scales = operators.linear_map(rows, maps.norm, maps.norm_bias)
    gates = operators.linear_map(conditions, maps.gate, maps.gate_bias)
    scales, gates = (x.expand(-1, samples, -1, -1) for x in (scales, gates))
    pairs = scales.unflatten(-1, (updates, 2, -1)).unbind(-3)
    parts = zip(pairs, gates.chunk(updates, -1), strict=True)
    return [Conditions(pair[..., 0, :], pair[..., 1, :], gate, maps.eps) for pair, gate in parts]


def layered_biases(bias: Tensor, layers: int, products: torch.dtype) -> Tensor:
    """Return biases [L, ..., H, Q, T] of [..., Q, T, L H].

    They keep their dtype, or have the dtype of products if that is smaller.
    """
    split: Tensor = rounded_biases(bias, products).unflatten(-1, (layers, -1))
    return split.movedim((-2, -1), (0, -3)).contiguous()


def rounded_biases(bias: Tensor, products: torch.dtype) -> Tensor:
    """Convert biases to the dtype of products if that is smaller."""
    return bias.to(products if products.itemsize < bias.dtype.itemsize else bias.dtype)


def update_samples(
    operators: PairOperators,
    weights: DiffusionWeights,
    x: Tensor,
    conditions: Tensor,
    biases: Iterable[Tensor],
    mask: Tensor | None,
) -> Tensor:
    """Update tokens by all layers, in place where possible, and return them.

    Parameters
    ----------
    operators : PairOperators
        Operators of a backend.
    weights : DiffusionWeights
        Weights.
    x : [B, R, N, C]
        Tokens of R samples.
    conditions : [B, R, N, S] or [B, 1, N, S]
        Conditions of the tokens, which samples may share.
    biases : iterable of [B, H, N, N]
        Biases of queries and keys in each layer, which samples share.
    mask : [B, R, N], optional
        Nonzero for tokens that are kept as keys.
    """
    layers = weights.layers
    terms = all_conditions(operators, weights.conditions, conditions, x.shape[1], 2 * len(layers))
    return update_by_terms(operators, layers, x, terms, biases, mask)


def update_by_terms(
    operators: PairOperators,
    layers: Sequence[Updates],
    x: Tensor,
    terms: Sequence[Conditions | WindowConditions],
    biases: Iterable[Tensor],
    mask: Tensor | None,
    starts: Tensor | None = None,
) -> Tensor:
    """Do the same as `update_samples` with the terms of `all_conditions` or `window_conditions`.

    Biases of atoms within windows are [B, W, H, Q, T], see `window_attention`. If keys have a
    normalization of their own, ``starts`` [W] may be the first ones of windows.
    """
    plain = _plain(layers)
    if plain is not None:
        return operators.conditioned_layers_(
            x, cast("Sequence[Conditions]", terms), biases, plain, mask
        )
    pairs = zip(terms[::2], terms[1::2], strict=True)
    for layer, bias, (first, second) in zip(layers, biases, pairs, strict=True):
        assert isinstance(second, Conditions)
        if isinstance(layer.attention, WindowAttentionWeights):
            assert isinstance(first, WindowConditions)
            operators.conditioned_windows_(x, first, bias, layer.attention, mask, starts)
        else:
            assert isinstance(first, Conditions)
            operators.conditioned_attention_(x, first, bias, layer.attention, mask)
        operators.conditioned_transition_(x, second, layer.transition)
        if layer.last_norm is not None:
            x = layer_norm(x, x.shape[-1:], *layer.last_norm)
    return x


def _plain(
    layers: Sequence[Updates],
) -> list[tuple[ConditionedAttentionWeights, ConditionedTransitionWeights]] | None:
    """Return attention and transition of layers that have one normalization for each; else None."""
    found = [
        (layer.attention, layer.transition)
        for layer in layers
        if layer.last_norm is None and isinstance(layer.attention, ConditionedAttentionWeights)
    ]
    return found if len(found) == len(layers) else None
