"""Weights of layers with the names of OpenFold, which are also those of Protenix."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mlff_triton.bio.core.weights import exact, exact_norm, wide_dtype
from mlff_triton.bio.models.structure.diffusion import ConditionMaps, condition_maps
from mlff_triton.bio.models.structure.maps import exact_weight, weight
from mlff_triton.errors import InputError
from mlff_triton.kernels.pairs.types import (
    ConditionedAttentionWeights,
    OuterProductWeights,
    TokenAttentionWeights,
    TriangleAttentionWeights,
    TriangleWeights,
    WindowAttentionWeights,
)
from mlff_triton.kernels.types.norm import Norm

WATCHED = ("eps", "precision", "starting", "c_hidden", "no_heads", "_outgoing")
"""Attributes of modules that these functions read, see `FastForward`."""


def norm(module: Any) -> Norm:
    """Read a normalization with a scale.

    Raises
    ------
    InputError
        If it has none.
    """
    if module.weight is None:
        raise InputError("a normalization has no scale")
    if module.bias is None:
        return exact(module.weight), None, module.eps
    return exact_norm(module)


def triangle(module: Any, *, outgoing: bool) -> TriangleWeights:
    """Read the weights of triangle multiplication, with separate or joint maps of both factors.

    Raises
    ------
    InputError
        If the module sums over the other edges.
    """
    if module._outgoing is not outgoing:
        raise InputError("triangle multiplication has the other direction")
    if hasattr(module, "linear_ab_p"):
        maps = weight(module.linear_ab_p), weight(module.linear_ab_g)
    else:
        project, gate = (
            torch.cat([weight(getattr(module, f"linear_{factor}_{kind}")) for factor in "ab"])
            for kind in "pg"
        )
        maps = project, gate
    return TriangleWeights(
        norm(module.layer_norm_in),
        norm(module.layer_norm_out),
        *maps,
        project_out=weight(module.linear_z),
        gate_out=weight(module.linear_g),
    )


def triangle_attention(
    module: Any, bias: Any, *, starting: bool = True
) -> TriangleAttentionWeights:
    """Read the weights of triangle attention, with a map to biases.

    Raises
    ------
    InputError
        If the module itself attends in the other direction.
    """
    if module.starting is not starting:
        raise InputError("triangle attention has the other direction")
    mha = module.mha
    _check_scale(mha)
    maps = mha.linear_q, mha.linear_k, mha.linear_v, mha.linear_g, bias, mha.linear_o
    return TriangleAttentionWeights(norm(module.layer_norm), *map(weight, maps))


def _check_scale(mha: Any) -> None:
    """Check that the scale of scores is that of the width of heads.

    Raises
    ------
    InputError
        If the module has another one.
    """
    heads = mha.num_heads if hasattr(mha, "num_heads") else mha.no_heads
    if mha.c_hidden * heads != len(mha.linear_q.weight):
        raise InputError("scores of attention have another scale than that of its heads")


def outer_product(module: Any) -> OuterProductWeights:
    """Read the weights of an outer product mean."""
    bias = None if module.linear_out.bias is None else exact(module.linear_out.bias)
    left, right = weight(module.linear_1), weight(module.linear_2)
    out = exact_weight(module.linear_out)
    return OuterProductWeights(norm(module.layer_norm), left, right, out, bias)


def token_attention(first_norm: Any, mha: Any) -> TokenAttentionWeights:
    """Read the weights of the attention of tokens, and of the normalization before it."""
    _check_scale(mha)
    bias = None if mha.linear_q.bias is None else exact(mha.linear_q.bias)
    others = mha.linear_k, mha.linear_v, mha.linear_g, mha.linear_o
    key, value, gate, out = map(weight, others)
    query = exact_weight(mha.linear_q)
    return TokenAttentionWeights(norm(first_norm), query, key, value, gate, out, bias)


def conditioned_attention(mha: Any) -> ConditionedAttentionWeights:
    """Read the weights of attention whose tokens are normalized with conditions."""
    _check_scale(mha)
    others = mha.linear_k, mha.linear_v, mha.linear_g
    maps = torch.cat([exact_weight(mha.linear_q), *map(weight, others)])
    return ConditionedAttentionWeights(maps, _query_bias(mha, maps), weight(mha.linear_o))


def window_attention(mha: Any, *, chained: bool) -> WindowAttentionWeights:
    """Read the weights of attention within windows, whose keys are normalized separately."""
    _check_scale(mha)
    queries = torch.cat([exact_weight(mha.linear_q), weight(mha.linear_g)])
    keys = torch.cat([weight(mha.linear_k), weight(mha.linear_v)])
    bias = _query_bias(mha, queries)
    return WindowAttentionWeights(queries, bias, keys, weight(mha.linear_o), chained)


def _query_bias(mha: Any, maps: Tensor) -> Tensor | None:
    """Return the bias of queries, with zeros for the other rows of the maps."""
    if mha.linear_q.bias is None:
        return None
    bias = maps.new_zeros(len(maps))
    bias[: len(mha.linear_q.bias)] = exact(mha.linear_q.bias)
    return bias


def conditions(
    own_norm: Any, norm_of_conditions: Any, scale: Any, shift: Any, gate: Any = None
) -> ConditionMaps:
    """Read the maps of the conditions of an update, or of a normalization without a gate.

    Raises
    ------
    InputError
        If normalizations have other parameters than the scale of that of the conditions.
    """
    if own_norm.weight is not None or own_norm.bias is not None:
        raise InputError("a normalization with conditions has parameters of its own")
    if norm_of_conditions.bias is not None:
        raise InputError("a normalization of conditions has a shift")
    scales = exact_weight(scale), exact(scale.bias)
    no_gate = scales[0][:0], scales[1][:0]
    gates = no_gate if gate is None else (exact_weight(gate), exact(gate.bias))
    return condition_maps(norm(norm_of_conditions), scales, weight(shift), gates, own_norm.eps)


def wide_weight(linear: Any, dtype: torch.dtype) -> Tensor:
    """Return the weight of a map that computes in float32 in every precision, in a wide dtype.

    Raises
    ------
    InputError
        If it has a bias, or computes in another dtype of its own.
    """
    if linear.bias is not None or linear.precision not in (None, torch.float32):
        raise InputError("a map has a bias, or computes in a dtype of its own")
    return exact(linear.weight).to(wide_dtype(dtype))
