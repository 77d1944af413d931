"""Terms of the conditioning of atoms, whose keys have a normalization of their own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, linear

from mlff_triton.bio.models.structure.diffusion import ConditionMaps, DiffusionLayer
from mlff_triton.kernels.pairs.types import Conditions, WindowConditions


def window_conditions(
    layers: Sequence[DiffusionLayer], conditions: Tensor, dtype: torch.dtype
) -> tuple[Conditions | WindowConditions, ...]:
    """Compute the terms of all updates, alternately attention and transition, in float64.

    All steps of a sampling run share them, and so their rounding errors.

    Parameters
    ----------
    layers : sequence of DiffusionLayer
        Weights in float64, with conditions of keys.
    conditions : [B, 1, M, S]
        Conditions of atoms, which samples share.
    dtype : torch.dtype
        Dtype of the terms.
    """
    found: list[Conditions | WindowConditions] = []
    for layer in layers:
        assert layer.key_conditions is not None
        first, second, keys = (
            _terms(maps, conditions.double(), dtype)
            for maps in (
                layer.attention_conditions,
                layer.transition_conditions,
                layer.key_conditions,
            )
        )
        scale, shift, gate, eps = first
        found += [WindowConditions(scale, shift, gate, keys.scale, keys.shift, eps), second]
    return tuple(found)


def _terms(maps: ConditionMaps, conditions: Tensor, dtype: torch.dtype) -> Conditions:
    assert isinstance(maps.norm, Tensor)
    assert isinstance(maps.gate, Tensor)
    rows = layer_norm(conditions, conditions.shape[-1:], eps=maps.norm_eps)
    scale, shift = linear(rows, maps.norm, maps.norm_bias).to(dtype).chunk(2, -1)
    gate = linear(conditions, maps.gate, maps.gate_bias).to(dtype)
    return Conditions(scale, shift, gate, maps.eps)
