"""Adapter for the score network of Protenix, its diffusion module."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from mlff_triton.bio.core.recognition import children
from mlff_triton.bio.core.weights import exact, wide_dtype
from mlff_triton.bio.models.protenix.adapter import NORM, SOURCES, transition
from mlff_triton.bio.models.structure.biases import BiasMaps
from mlff_triton.bio.models.structure.diffusion import ConditionMaps, DiffusionLayer
from mlff_triton.bio.models.structure.layers import (
    WATCHED,
    conditioned_attention,
    conditions,
    norm,
    wide_weight,
    window_attention,
)
from mlff_triton.bio.models.structure.maps import weight
from mlff_triton.bio.models.structure.pair_score import (
    BLOCK,
    Collected,
    Given,
    Noisy,
    PairScoreForward,
    Transformer,
)
from mlff_triton.bio.models.structure.score_network import AtomMaps, ConditionWeights
from mlff_triton.errors import InputError
from mlff_triton.kernels.types.pair_stack import ConditionedTransitionWeights

FEATURES = (
    *("ref_pos", "ref_charge", "ref_mask", "ref_atom_name_chars"),
    *("ref_element", "d_lm", "v_lm", "pad_info"),
)
KNOWN = {
    BLOCK: children(
        {
            "AttentionPairBias": "attention_pair_bias",
            "ConditionedTransitionBlock": "conditioned_transition_block",
            "Identity DropPath": "drop_path",
        }
    ),
    "AttentionPairBias": children(
        {
            "AdaptiveLayerNorm": "layernorm_a",
            "AdaptiveLayerNorm nothing": "layernorm_kv",
            "Attention": "attention",
            NORM: "layernorm_z",
            "Linear": "linear_nobias_z",
            "BiasInitLinear": "linear_a_last",
        }
    ),
    "AdaptiveLayerNorm": children(
        {NORM: "layernorm_a layernorm_s", "Linear": "linear_s linear_nobias_s"}
    ),
    "Attention": children(
        {"Linear": "linear_q linear_k linear_v linear_o linear_g", "Sigmoid": "sigmoid"}
    ),
    "ConditionedTransitionBlock": children(
        {
            "AdaptiveLayerNorm": "adaln",
            "Linear": "linear_nobias_a1 linear_nobias_a2 linear_nobias_b",
            "BiasInitLinear": "linear_s",
        }
    ),
}
"""Submodules of classes of Protenix."""

MODULE = children(
    {
        "DiffusionConditioning": "diffusion_conditioning",
        "AtomAttentionEncoder": "atom_attention_encoder",
        NORM: "layernorm_s layernorm_a normalize",
        "Linear": "linear_no_bias_s",
        "DiffusionTransformer": "diffusion_transformer",
        "AtomAttentionDecoder": "atom_attention_decoder",
    }
)
"""Submodules of a diffusion module."""


class ProtenixDiffusionForward(PairScoreForward):
    """Score network of Protenix."""

    supported = "the diffusion module of Protenix"
    watches = (
        *WATCHED,
        "num_heads",
        "n_heads",
        "has_s",
        "cross_attention_mode",
        "sigma_data",
        "n_queries",
        "n_keys",
    )
    names = "x_noisy", "t_hat_noise_level"
    sources, parts, known = SOURCES, MODULE, KNOWN

    def collect(self) -> Collected:
        """Read the weights. Maps that compute in float32 do so in every precision."""
        own, wide = self.module, partial(wide_weight, dtype=self.dtype)
        fixed, blocks = own.diffusion_conditioning, own.diffusion_transformer.blocks
        encoder, decoder = own.atom_attention_encoder, own.atom_attention_decoder
        waves = fixed.fourier_embedding
        conditions = ConditionWeights(
            norm(fixed.layernorm_s),
            wide(fixed.linear_no_bias_s),
            None,
            exact(waves.w).to(wide_dtype(self.dtype)),
            exact(waves.b).to(wide_dtype(self.dtype)),
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
        return Collected(conditions, maps, _atoms(encoder), tokens, _atoms(decoder))

    def window(self) -> tuple[int, int]:
        """Return the numbers of queries and of keys per window of atoms."""
        encoder = self.module.atom_attention_encoder
        return encoder.n_queries, encoder.n_keys

    def noisy(self, arguments: Mapping[str, Any]) -> Noisy | str:
        """Return noisy positions and their levels, one level where samples share its memory."""
        if not arguments.get("use_conditioning", True):
            return "it is called without conditioning"
        x, levels = (arguments[name] for name in self.names)
        shared = levels.dim() == 1 and levels.stride(0) == 0
        return Noisy(x, levels[:1] if shared else levels)

    def prepare(self, arguments: Mapping[str, Any]) -> Given:
        """Run the modules that run once."""
        own, given = self.module, arguments["input_feature_dict"]
        s_inputs, s_trunk, z_trunk = (arguments[n] for n in ("s_inputs", "s_trunk", "z_trunk"))
        pairs = arguments.get("pair_z")
        if pairs is None:
            pairs = own.diffusion_conditioning.prepare_cache(given["relp"], z_trunk, False)
        token = given["atom_to_token_idx"]
        _, _, atoms, atom_pairs = own.atom_attention_encoder(
            token,
            *(given[name] for name in FEATURES),
            r_l=torch.zeros_like(given["ref_pos"])[None],
            s=s_trunk[None],
            z=pairs[None],
            p_lm=arguments.get("p_lm"),
            c_l=arguments.get("c_l"),
        )
        tokens = torch.cat([s_trunk, s_inputs], -1)
        return Given(tokens[None], atoms, pairs[None], atom_pairs[0], token)


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
