"""Adapter for the score network of OpenFold3, its diffusion module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mlff_triton.bio.core.recognition import children
from mlff_triton.bio.core.weights import exact, wide_dtype
from mlff_triton.bio.models.openfold3.adapter import SOURCES, transition
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
from mlff_triton.kernels.types.pair_stack import ConditionedTransitionWeights

EPS = 1e-9
"""Added to numbers of atoms per token, as upstream."""
MASKS = "atom_mask", "token_mask"
_ATTENTION = {"Linear": "linear_ada_out linear_z", "Attention": "mha", "Sigmoid": "sigmoid"}
KNOWN = {
    BLOCK: children(
        {
            "DiffusionAttentionPairBias CrossAttentionPairBias": "attention_pair_bias",
            "ConditionedTransitionBlock": "conditioned_transition",
        }
    ),
    "DiffusionAttentionPairBias": children({"AdaLN": "layer_norm_a", **_ATTENTION}),
    "CrossAttentionPairBias": children({"AdaLN": "layer_norm_a_q layer_norm_a_k", **_ATTENTION}),
    "AdaLN": children(
        {
            "LayerNorm": "layer_norm_a layer_norm_s",
            "Linear": "linear_g linear_s",
            "Sigmoid": "sigmoid",
        }
    ),
    "Attention": children(
        {"Linear": "linear_q linear_k linear_v linear_o linear_g", "Sigmoid": "sigmoid"}
    ),
    "ConditionedTransitionBlock": children(
        {
            "AdaLN": "layer_norm",
            "SwiGLU": "swiglu",
            "Sigmoid": "sigmoid",
            "Linear": "linear_g linear_out",
        }
    ),
    "SwiGLU": children({"Linear": "linear_a linear_b", "SiLU": "swish"}),
}
"""Submodules of classes of OpenFold3."""

MODULE = children(
    {
        "DiffusionConditioning": "diffusion_conditioning",
        "AtomAttentionEncoder": "atom_attn_enc",
        "LayerNorm": "layer_norm_s layer_norm_a",
        "Linear": "linear_s",
        "DiffusionTransformer": "diffusion_transformer",
        "AtomAttentionDecoder": "atom_attn_dec",
    }
)
"""Submodules of a diffusion module."""


class OpenFold3DiffusionForward(PairScoreForward):
    """Score network of OpenFold3."""

    supported = "the diffusion module of OpenFold3"
    watches = (*WATCHED, "sigma_data", "n_query", "n_key")
    names = "xl_noisy", "t"
    sources, parts, known = SOURCES, MODULE, KNOWN

    def collect(self) -> Collected:
        """Read the weights."""
        own = self.module
        fixed, encoder, decoder = own.diffusion_conditioning, own.atom_attn_enc, own.atom_attn_dec
        waves = fixed.fourier_emb
        conditions = ConditionWeights(
            norm(fixed.layer_norm_s),
            weight(fixed.linear_s),
            None,
            exact(waves.w).to(wide_dtype(self.dtype)),
            exact(waves.b).to(wide_dtype(self.dtype)),
            norm(fixed.layer_norm_n),
            weight(fixed.linear_n),
            [transition(each) for each in fixed.transition_s],
        )
        maps = AtomMaps(
            wide_weight(encoder.noisy_position_embedder.linear_r, self.dtype),
            weight(encoder.linear_q[0]),
            norm(own.layer_norm_s),
            weight(own.linear_s),
            norm(own.layer_norm_a),
            weight(decoder.linear_q_in),
            norm(decoder.layer_norm),
            wide_weight(decoder.linear_q_out, self.dtype),
        )
        tokens = own.diffusion_transformer
        return Collected(
            conditions,
            maps,
            _atoms(encoder.atom_transformer),
            Transformer([_layer(block) for block in tokens.blocks], _biases(tokens)),
            _atoms(decoder.atom_transformer),
        )

    def window(self) -> tuple[int, int]:
        """Return the numbers of queries and of keys per window of atoms."""
        encoder = self.module.atom_attn_enc
        return int(encoder.n_query), int(encoder.n_key)

    def noisy(self, arguments: Mapping[str, Any]) -> Noisy | str:
        """Return noisy positions and their levels."""
        if not arguments.get("use_conditioning"):
            return "it is called without conditioning"
        if any(arguments[name] is not arguments["batch"][name] for name in MASKS):
            return "masks of atoms or tokens are not those of its features"
        x, levels = (arguments[name] for name in self.names)
        if x.dim() != 4 or len(x) != 1:
            return "positions are not those of samples of one complex"
        return Noisy(x[0], levels.reshape(-1))

    def masks(self, arguments: Mapping[str, Any]) -> list[Any]:
        """Return the masks of atoms and tokens."""
        return [arguments[name] for name in MASKS]

    def prepare(self, arguments: Mapping[str, Any]) -> Given:
        """Run the modules that run once."""
        own, batch = self.module, arguments["batch"]
        s_input, s_trunk = arguments["si_input"], arguments["si_trunk"]
        _, pairs = own.diffusion_conditioning(
            batch=batch,
            t=arguments["t"],
            si_input=s_input,
            si_trunk=s_trunk,
            zij_trunk=arguments["zij_trunk"],
            use_conditioning=True,
            chunk_size=arguments.get("chunk_size"),
        )
        _, _, atoms, atom_pairs = own.atom_attn_enc(
            batch=batch,
            rl=torch.zeros_like(batch["ref_pos"]),
            si_trunk=s_trunk,
            zij_trunk=pairs,
            use_high_precision_attention=arguments.get("use_high_precision_attention", False),
        )
        atom_mask, token_mask = (batch[name].flatten() for name in MASKS)
        return Given(
            torch.cat([s_trunk, s_input], -1).flatten(0, -3),
            atoms.flatten(0, -3),
            pairs.flatten(0, -4),
            atom_pairs.flatten(0, -4),
            batch["atom_to_token_index"].flatten(),
            EPS,
            atom_mask,
            token_mask,
            _starts(atom_mask, *self.window()),
        )


def _starts(mask: Tensor, queries: int, keys: int) -> Tensor:
    """Return the first keys of windows, which are moved to within the atoms, int32 [W].

    Source: ``get_block_indices`` of OpenFold3, which moves windows from the beginning first.
    """
    first = queries // 2 - keys // 2 + torch.arange(0, len(mask), queries, device=mask.device)
    beyond = (first + keys - int(mask.sum())).clamp(min=0)
    return torch.where(first < 0, 0, first - beyond).int()


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
