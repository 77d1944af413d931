"""Weights of OpenFold3, in the form of the code shared by structure models."""

from __future__ import annotations

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
    if not with_tokens:
        return BlockWeights(pair_updates(block), None)
    attention = block.attn_pair_bias
    tokens = TokenWeights(
        token_attention(attention.layer_norm_a, attention.mha),
        bias_norm=norm(attention.layer_norm_z),
        bias=weight(attention.linear_z),
        transition=transition(block.single_transition),
    )
    return BlockWeights(pair_updates(block.pair_stack), tokens)


def msa_weights(block: Any) -> BlockWeights:
    """Read the weights of a block of the MSA module.

    Raises
    ------
    InputError
        If the block updates neither the alignment nor pairs from it.
    """
    average, last = None, None
    if not block.skip_msa_update:
        average, last = _average(block.msa_att_row), transition(block.msa_transition)
    elif not block.opm_first:
        raise InputError("it updates neither the alignment nor pairs by it")
    outer = block.outer_product_mean
    alignment = MSAWeights(outer_product(outer), average, last, bool(block.opm_first), outer.eps)
    return BlockWeights(pair_updates(block.pair_stack), alignment)


def pair_updates(block: Any) -> PairWeights:
    """Read the weights of the updates of pairs."""
    return PairWeights(
        triangle(block.tri_mul_out, outgoing=True),
        triangle(block.tri_mul_in, outgoing=False),
        triangle_attention(block.tri_att_start, block.tri_att_start.linear_z),
        triangle_attention(block.tri_att_end, block.tri_att_end.linear_z),
        transition(block.pair_transition),
        bias_of_ending="query",
    )


def transition(module: Any) -> TransitionWeights:
    """Read the weights of a transition."""
    maps = module.swiglu.linear_a, module.swiglu.linear_b, module.linear_out
    return TransitionWeights(norm(module.layer_norm), *map(weight, maps))


def _average(module: Any) -> AverageWeights:
    maps = map(weight, (module.linear_v, module.linear_g, module.linear_z, module.linear_o))
    return AverageWeights(norm(module.layer_norm_m), norm(module.layer_norm_z), *maps)


def score_weights(own: Any, dtype: torch.dtype) -> Collected:
    """Read the weights of the diffusion module, for products in a dtype."""
    fixed, encoder, decoder = own.diffusion_conditioning, own.atom_attn_enc, own.atom_attn_dec
    waves = fixed.fourier_emb
    embedding = ConditionWeights(
        norm(fixed.layer_norm_s),
        weight(fixed.linear_s),
        None,
        exact(waves.w).to(wide_dtype(dtype)),
        exact(waves.b).to(wide_dtype(dtype)),
        norm(fixed.layer_norm_n),
        weight(fixed.linear_n),
        [transition(each) for each in fixed.transition_s],
    )
    maps = AtomMaps(
        wide_weight(encoder.noisy_position_embedder.linear_r, dtype),
        weight(encoder.linear_q[0]),
        norm(own.layer_norm_s),
        weight(own.linear_s),
        norm(own.layer_norm_a),
        weight(decoder.linear_q_in),
        norm(decoder.layer_norm),
        wide_weight(decoder.linear_q_out, dtype),
    )
    tokens = own.diffusion_transformer
    return Collected(
        embedding,
        maps,
        _atoms(encoder.atom_transformer),
        Transformer([_layer(block) for block in tokens.blocks], _biases(tokens)),
        _atoms(decoder.atom_transformer),
    )


def _layer(block: Any) -> DiffusionLayer:
    attention, last = block.attention_pair_bias, block.conditioned_transition
    return DiffusionLayer(
        attention.mha.no_heads,
        _conditions(attention.layer_norm_a, attention.linear_ada_out),
        _conditions(last.layer_norm, last.linear_g),
        conditioned_attention(attention.mha),
        _transition(last),
    )


def _atoms(transformer: Any) -> Transformer:
    return Transformer([_atom_layer(block) for block in transformer.blocks], _biases(transformer))


def _atom_layer(block: Any) -> DiffusionLayer:
    attention, last = block.attention_pair_bias, block.conditioned_transition
    return DiffusionLayer(
        attention.mha.no_heads,
        _conditions(attention.layer_norm_a_q, attention.linear_ada_out),
        _conditions(last.layer_norm, last.linear_g),
        window_attention(attention.mha, chained=False),
        _transition(last),
        key_conditions=_conditions(attention.layer_norm_a_k),
    )


def _biases(transformer: Any) -> BiasMaps:
    maps = [weight(block.attention_pair_bias.linear_z) for block in transformer.blocks]
    return BiasMaps.of([norm(transformer.layer_norm_z)] * len(maps), maps)


def _conditions(adaptive: Any, gate: Any = None) -> ConditionMaps:
    own, others = adaptive.layer_norm_a, adaptive.layer_norm_s
    return conditions(own, others, adaptive.linear_g, adaptive.linear_s, gate)


def _transition(module: Any) -> ConditionedTransitionWeights:
    hidden = torch.cat([weight(module.swiglu.linear_a), weight(module.swiglu.linear_b)])
    return ConditionedTransitionWeights(hidden, weight(module.linear_out))
