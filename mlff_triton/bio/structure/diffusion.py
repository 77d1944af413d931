"""Updates of the tokens of samples by a diffusion transformer, with conditions for each token.

Source: J. Abramson et al., "Accurate structure prediction of biomolecular interactions with
AlphaFold 3", https://doi.org/10.1038/s41586-024-07487-w, algorithms 23 to 26 of the supplement. The
transition has one factor more, as in Boltz.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, linear, silu

from mlff_triton.bio.structure.operators import Operators
from mlff_triton.kernels.types.norm import Norm
from mlff_triton.kernels.types.pair_stack import ConditionedAttentionWeights, Conditions

MAX_CHANNELS = 4096


class ConditionMaps(NamedTuple):
    """Maps of the conditions of an update of tokens.

    Attributes
    ----------
    norm, norm_bias : [2 C, S], [2 C]
        Map of normalized conditions to logits of scales and, below, to shifts.
    gate, gate_bias : [C, S], [C]
        Map of conditions to logits of the gates of the update.
    norm_eps, eps : float
        Added to the variances of conditions, and of tokens.
    """

    norm: Tensor
    norm_bias: Tensor
    gate: Tensor
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
    attention : ConditionedAttentionWeights
        Attention.
    gate : [K, C]
        Map to the hidden channels that are activated.
    factors : [2 K, C]
        Map to both factors of the activated channels.
    down : [C, K]
        Map of the products to the update.
    last_norm : Norm, optional
        Normalization of the result.
    """

    heads: int
    attention_conditions: ConditionMaps
    attention: ConditionedAttentionWeights
    transition_conditions: ConditionMaps
    gate: Tensor
    factors: Tensor
    down: Tensor
    last_norm: Norm | None = None


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


def update_samples(
    operators: Operators,
    layers: Sequence[DiffusionLayer],
    x: Tensor,
    conditions: Tensor,
    biases: Tensor,
    mask: Tensor,
) -> Tensor:
    """Update tokens by all layers, in place where possible, and return them.

    Parameters
    ----------
    operators : Operators
        Operators of a backend.
    layers : sequence of DiffusionLayer
        Weights.
    x : [B, R, N, C]
        Tokens of R samples.
    conditions : [B, R, N, S]
        Conditions of the tokens.
    biases : [L, B, H, N, N]
        Biases of queries and keys in all layers, which samples share.
    mask : [B, R, N]
        Nonzero for tokens that are kept as keys.
    """
    normalized: dict[float, Tensor] = {}
    rounded = conditions.to(layers[0].gate.dtype)

    def terms(maps: ConditionMaps) -> Conditions:
        if maps.norm_eps not in normalized:
            rows = layer_norm(conditions, conditions.shape[-1:], eps=maps.norm_eps)
            normalized[maps.norm_eps] = rows.to(maps.norm.dtype)
        scale, shift = linear(normalized[maps.norm_eps], maps.norm, maps.norm_bias).chunk(2, -1)
        return Conditions(scale, shift, linear(rounded, maps.gate, maps.gate_bias), maps.eps)

    for layer, bias in zip(layers, biases, strict=True):
        first = terms(layer.attention_conditions)
        operators.conditioned_attention_(x, first, bias, layer.attention, mask)
        second = terms(layer.transition_conditions)
        scale, shift, gate, eps = second
        y = operators.adaptive_norm(x, scale, shift, eps, layer.gate.dtype)
        value, factor = linear(y, layer.factors).chunk(2, -1)
        hidden = silu(linear(y, layer.gate)).mul_(value).mul_(factor)
        x.addcmul_(linear(hidden, layer.down).to(x.dtype), gate.to(x.dtype).sigmoid())
        if layer.last_norm is not None:
            x = layer_norm(x, x.shape[-1:], *layer.last_norm)
    return x
