"""Weights of Protenix, in the form of the code shared by structure models."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from mlff_triton.bio.core.weights import exact, wide_dtype
from mlff_triton.bio.models.structure.biases import BiasMaps
from mlff_triton.bio.models.structure.diffusion import ConditionMaps, DiffusionLayer
from mlff_triton.bio.models.structure.layers import (
    conditioned_attention,
    conditions,
    norm,
    outer_product,
    token_attention,
    triangle,
    triangle_attention,
    wide_weight,
    window_attention,
)
from mlff_triton.bio.models.structure.maps import weight
from mlff_triton.bio.models.structure.pair_score import Collected, Transformer
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
    ConditionedTransitionWeights,
    TransitionWeights,
)


def block_weights(block: Any, *, with_tokens: bool) -> BlockWeights:
    """Read the weights of a block of the trunk."""
    return BlockWeights(pair_updates(block), _tokens(block) if with_tokens else None)


def msa_weights(block: Any) -> BlockWeights:
    """Read the weights of a block of the MSA module."""
    average, last = None, None
    if not block.is_last_block:
        stack = block.msa_stack
        average = _average(stack.msa_pair_weighted_averaging)
        last = transition(stack.transition_m)
    outer = block.outer_product_mean_msa
    alignment = MSAWeights(
        outer_product(outer),
        average,
        last,
        pairs_first=True,
        eps=outer.eps,
        averages_all=True,
    )
    return BlockWeights(pair_updates(block.pair_stack), alignment)


def pair_updates(block: Any) -> PairWeights:
    """Read the weights of the updates of pairs by a block."""
    return PairWeights(
        triangle(block.tri_mul_out, outgoing=True),
        triangle(block.tri_mul_in, outgoing=False),
        triangle_attention(block.tri_att_start, block.tri_att_start.linear),
        triangle_attention(block.tri_att_end, block.tri_att_end.linear),
        transition(block.pair_transition),
    )


def _tokens(block: Any) -> TokenWeights:
    attention = block.attention_pair_bias
    if attention.has_s or attention.cross_attention_mode:
        raise InputError("attention of tokens has conditions, or other keys than queries")
    return TokenWeights(
        token_attention(attention.layernorm_a, attention.attention),
        bias_norm=norm(attention.layernorm_z),
        bias=weight(attention.linear_nobias_z),
        transition=transition(block.single_transition),
    )


def transition(module: Any) -> TransitionWeights:
    """Read the weights of a transition."""
    maps = module.linear_no_bias_a, module.linear_no_bias_b, module.linear_no_bias
    return TransitionWeights(norm(module.layernorm1), *map(weight, maps))


def _average(module: Any) -> AverageWeights:
    if module.softmax_w.dim != -2:
        raise InputError("averages are weighted along another axis")
    maps = (
        module.linear_no_bias_mv,
        module.linear_no_bias_mg,
        module.linear_no_bias_z,
        module.linear_no_bias_out,
    )
    return AverageWeights(norm(module.layernorm_m), norm(module.layernorm_z), *map(weight, maps))


def score_weights(own: Any, dtype: torch.dtype) -> Collected:
    """Read the weights of the diffusion module, for products in a dtype.

    Maps that upstream computes in float32 stay in float32 in every precision.
    """
    wide = partial(wide_weight, dtype=dtype)
    fixed, blocks = own.diffusion_conditioning, own.diffusion_transformer.blocks
    encoder, decoder = own.atom_attention_encoder, own.atom_attention_decoder
    waves = fixed.fourier_embedding
    embedding = ConditionWeights(
        norm(fixed.layernorm_s),
        wide(fixed.linear_no_bias_s),
        None,
        exact(waves.w).to(wide_dtype(dtype)),
        exact(waves.b).to(wide_dtype(dtype)),
        norm(fixed.layernorm_n),
        wide(fixed.linear_no_bias_n),
        [transition(each) for each in (fixed.transition_s1, fixed.transition_s2)],
    )
    maps = AtomMaps(
        wide(encoder.linear_no_bias_r),
        weight(encoder.linear_no_bias_q),
        norm(own.layernorm_s),
        wide(own.linear_no_bias_s),
        norm(own.layernorm_a),
        weight(decoder.linear_no_bias_a),
        norm(decoder.layernorm_q),
        wide(decoder.linear_no_bias_out),
    )
    tokens = Transformer([_layer(block) for block in blocks], _biases(blocks))
    return Collected(embedding, maps, _atoms(encoder), tokens, _atoms(decoder))


def _layer(block: Any, *, windows: bool = False) -> DiffusionLayer:
    attention, last = block.attention_pair_bias, block.conditioned_transition_block
    if attention.cross_attention_mode is not windows or not attention.has_s:
        raise InputError("attention has no conditions, or other keys than expected")
    return DiffusionLayer(
        attention.n_heads,
        _conditions(attention.layernorm_a, attention.linear_a_last),
        _conditions(last.adaln, last.linear_s),
        conditioned_attention(attention.attention),
        _transition(last),
    )


def _atoms(module: Any) -> Transformer:
    blocks = module.atom_transformer.diffusion_transformer.blocks
    return Transformer([_atom_layer(block) for block in blocks], _biases(blocks))


def _atom_layer(block: Any) -> DiffusionLayer:
    attention = block.attention_pair_bias
    return _layer(block, windows=True)._replace(
        attention=window_attention(attention.attention, chained=True),
        key_conditions=_conditions(attention.layernorm_kv),
    )


def _biases(blocks: Any) -> BiasMaps:
    layers = [block.attention_pair_bias for block in blocks]
    norms = [norm(layer.layernorm_z) for layer in layers]
    return BiasMaps.of(norms, [weight(layer.linear_nobias_z) for layer in layers])


def _conditions(adaptive: Any, gate: Any = None) -> ConditionMaps:
    own, others = adaptive.layernorm_a, adaptive.layernorm_s
    return conditions(own, others, adaptive.linear_s, adaptive.linear_nobias_s, gate)


def _transition(module: Any) -> ConditionedTransitionWeights:
    hidden = torch.cat([weight(module.linear_nobias_a1), weight(module.linear_nobias_a2)])
    return ConditionedTransitionWeights(hidden, weight(module.linear_nobias_b))
