"""Weights of Boltz-1 and Boltz-2, in the form of the code shared by structure models."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from mlff_triton.bio.core.weights import exact, exact_norm
from mlff_triton.bio.models.structure.diffusion import (
    ConditionMaps,
    DiffusionLayer,
    condition_maps,
)
from mlff_triton.bio.models.structure.layers import triangle_attention
from mlff_triton.bio.models.structure.maps import exact_weight, weight
from mlff_triton.bio.models.structure.score_network import AtomMaps, ConditionWeights
from mlff_triton.bio.models.structure.updates import (
    BlockWeights,
    MSAWeights,
    PairWeights,
    TokenWeights,
)
from mlff_triton.errors import InputError
from mlff_triton.kernels.pairs.types import (
    AverageWeights,
    ConditionedAttentionWeights,
    ConditionedTransitionWeights,
    OuterProductWeights,
    TokenAttentionWeights,
    TransitionWeights,
    TriangleWeights,
)

HEADS_FIRST = "b ... h -> b h ..."
"""Order of the axes of biases."""

DIFFUSION_WATCHED = ("eps", "precision", "pattern", "num_heads")
"""Attributes of modules that `diffusion_layers` reads."""


def block_weights(block: Any, *, with_tokens: bool) -> BlockWeights:
    """Read the weights of a block of the trunk."""
    updates = pair_updates(block, block.transition_z)
    return BlockWeights(updates, tokens(block) if with_tokens else None)


def msa_weights(block: Any) -> BlockWeights:
    """Read the weights of a block of the MSA module."""
    pairs = getattr(block, "pairformer_layer", None)
    if pairs is None:
        updates = pair_updates(block, block.z_transition)
    else:
        updates = pair_updates(pairs, pairs.transition_z)
    outer = _outer_product(block.outer_product_mean)
    average = _average(block.pair_weighted_averaging)
    return BlockWeights(updates, MSAWeights(outer, average, transition(block.msa_transition)))


def pair_updates(block: Any, last: Any) -> PairWeights:
    """Read the weights of the updates of pairs by a block with a last transition."""
    return PairWeights(
        triangle(block.tri_mul_out),
        triangle(block.tri_mul_in),
        triangle_attention(block.tri_att_start, block.tri_att_start.linear),
        triangle_attention(block.tri_att_end, block.tri_att_end.linear, starting=False),
        transition(last),
    )


def triangle(module: Any) -> TriangleWeights:
    """Read the weights of triangle multiplication."""
    maps = (weight(each) for each in (module.p_in, module.g_in, module.p_out, module.g_out))
    return TriangleWeights(exact_norm(module.norm_in), exact_norm(module.norm_out), *maps)


def transition(module: Any) -> TransitionWeights:
    """Read the weights of a transition.

    Raises
    ------
    InputError
        If it changes the number of channels.
    """
    if len(module.fc3.weight) != len(module.norm.weight):
        raise InputError("a transition changes the number of channels")
    maps = map(weight, (module.fc1, module.fc2, module.fc3))
    return TransitionWeights(exact_norm(module.norm), *maps)


def tokens(module: Any) -> TokenWeights:
    """Read the weights of the updates of tokens by a block.

    Raises
    ------
    InputError
        If the axes of biases have an unknown order, or tokens are not normalized once.
    """
    own = module.attention
    if own.proj_z[2].pattern != HEADS_FIRST:
        raise InputError("the axes of biases have an unknown order")
    own_norm = getattr(own, "norm_s", None) if getattr(own, "initial_norm", True) else None
    norms = getattr(module, "pre_norm_s", None), own_norm
    if norms.count(None) != 1:
        raise InputError("its tokens are not normalized once before attention")
    key, value, gate, out = map(weight, (own.proj_k, own.proj_v, own.proj_g, own.proj_o))
    last = getattr(module, "s_post_norm", None)
    return TokenWeights(
        TokenAttentionWeights(
            exact_norm(norms[0] or norms[1]),
            *(exact_weight(own.proj_q), key, value, gate, out),
            query_bias=exact(own.proj_q.bias),
        ),
        bias_norm=exact_norm(own.proj_z[0]),
        bias=weight(own.proj_z[1]),
        transition=transition(module.transition_s),
        last_norm=exact_norm(last) if isinstance(last, nn.LayerNorm) else None,
    )


def _outer_product(module: Any) -> OuterProductWeights:
    left, right = weight(module.proj_a), weight(module.proj_b)
    out = exact_weight(module.proj_o)
    return OuterProductWeights(exact_norm(module.norm), left, right, out, exact(module.proj_o.bias))


def _average(module: Any) -> AverageWeights:
    maps = map(weight, (module.proj_m, module.proj_g, module.proj_z, module.proj_o))
    return AverageWeights(exact_norm(module.norm_m), exact_norm(module.norm_z), *maps)


def diffusion_layers(module: Any) -> list[DiffusionLayer]:
    """Read the weights of a diffusion transformer in float64.

    Raises
    ------
    InputError
        If it is built differently from the package's own.
    """
    return [_layer(layer) for layer in module.layers]


def _layer(layer: Any) -> DiffusionLayer:
    attention, transition = layer.pair_bias_attn, layer.transition
    order = attention.proj_z
    if (order[-1] if isinstance(order, nn.Sequential) else order).pattern != HEADS_FIRST:
        raise InputError("the axes of biases have an unknown order")
    others = attention.proj_k, attention.proj_v, attention.proj_g
    inputs = torch.cat([exact_weight(attention.proj_q), *map(weight, others)])
    bias = inputs.new_zeros(len(inputs))
    bias[: len(attention.proj_q.bias)] = exact(attention.proj_q.bias)
    swish = weight(transition.swish_gate[0]).chunk(2)
    norm = getattr(layer, "post_lnorm", None)
    return DiffusionLayer(
        heads=attention.num_heads,
        attention_conditions=_conditions(layer.adaln, layer.output_projection[0]),
        attention=ConditionedAttentionWeights(inputs, bias, weight(attention.proj_o)),
        transition_conditions=_conditions(transition.adaln, transition.output_projection[0]),
        transition=ConditionedTransitionWeights(
            torch.cat([swish[1], swish[0], weight(transition.a_to_b)]),
            weight(transition.b_to_a),
        ),
        last_norm=exact_norm(norm) if isinstance(norm, nn.LayerNorm) else None,
    )


def _conditions(norm: Any, gate: Any) -> ConditionMaps:
    if norm.a_norm.weight is not None or norm.s_norm.bias is not None:
        raise InputError("a normalization with conditions has a scale or a shift of its own")
    return condition_maps(
        (exact(norm.s_norm.weight), None, norm.s_norm.eps),
        (exact_weight(norm.s_scale), exact(norm.s_scale.bias)),
        weight(norm.s_bias),
        (exact_weight(gate), exact(gate.bias)),
        norm.a_norm.eps,
    )


def score_conditions(module: Any, wide: torch.dtype) -> ConditionWeights:
    """Read the weights that embed tokens and noise levels; weights of waves in a wide dtype.

    Raises
    ------
    InputError
        If noise levels are not embedded.
    """
    if getattr(module, "disable_times", False):
        raise InputError("noise levels are not embedded")
    waves = module.fourier_embed.proj
    return ConditionWeights(
        exact_norm(module.norm_single),
        exact_weight(module.single_embed),
        exact(module.single_embed.bias),
        exact_weight(waves)[:, 0].to(wide),
        exact(waves.bias).to(wide),
        exact_norm(module.norm_fourier),
        weight(module.fourier_to_single),
        [transition(each) for each in module.transitions],
    )


def score_maps(own: Any, rows: torch.dtype) -> AtomMaps:
    """Read the maps from and to atoms of a score network; maps of positions in the dtype of rows.

    Raises
    ------
    InputError
        If its atoms have an activation other than ReLU.
    """
    encoder, decoder = own.atom_attention_encoder, own.atom_attention_decoder
    update = decoder.atom_feat_to_atom_pos_update
    norm, output = update if isinstance(update, nn.Sequential) else (None, update)
    if type(encoder.atom_to_token_trans[1]) is not nn.ReLU:
        raise InputError("atoms are mapped to tokens with another activation than ReLU")
    return AtomMaps(
        weight(encoder.r_to_q_trans)[:, :3].to(rows),  # the other channels of Boltz-1 are zero
        weight(encoder.atom_to_token_trans[0]),
        exact_norm(own.s_to_a_linear[0]),
        weight(own.s_to_a_linear[1]),
        exact_norm(own.a_norm),
        weight(decoder.a_to_q_trans),
        None if norm is None else exact_norm(norm),
        weight(output).to(rows),
    )
