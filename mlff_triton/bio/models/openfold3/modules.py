"""Submodules of classes of OpenFold3, by which its modules are recognized."""

from __future__ import annotations

from mlff_triton.bio.core.recognition import children
from mlff_triton.bio.models.structure.pair_score import BLOCK

SOURCES = ("openfold3.",)

_FUSED = children(
    {
        "LayerNorm": "layer_norm_in layer_norm_out",
        "Linear": "linear_g linear_z linear_ab_p linear_ab_g",
        "Sigmoid": "sigmoid",
    }
)
_SPLIT = children(
    {
        "LayerNorm": "layer_norm_in layer_norm_out",
        "Linear": "linear_g linear_z linear_a_p linear_a_g linear_b_p linear_b_g",
        "Sigmoid": "sigmoid",
    }
)
KNOWN = {
    "TriangleMultiplicationOutgoing": _SPLIT,
    "TriangleMultiplicationIncoming": _SPLIT,
    "FusedTriangleMultiplicationOutgoing": _FUSED,
    "FusedTriangleMultiplicationIncoming": _FUSED,
    "TriangleAttention": children(
        {"LayerNorm": "layer_norm", "Linear": "linear_z", "Attention": "mha"}
    ),
    "Attention": children(
        {"Linear": "linear_q linear_k linear_v linear_o linear_g", "Sigmoid": "sigmoid"}
    ),
    "SwiGLUTransition": children(
        {"LayerNorm": "layer_norm", "SwiGLU": "swiglu", "Linear": "linear_out"}
    ),
    "SwiGLU": children({"Linear": "linear_a linear_b", "SiLU": "swish"}),
    "DropoutRowwise": children({"Dropout": "dropout"}),
    "AttentionPairBias": children(
        {
            "LayerNorm": "layer_norm_a layer_norm_z",
            "Linear": "linear_z",
            "Attention": "mha",
            "Sigmoid": "sigmoid",
        }
    ),
    "PairBlock": children(
        {
            "TriangleMultiplicationOutgoing FusedTriangleMultiplicationOutgoing": "tri_mul_out",
            "TriangleMultiplicationIncoming FusedTriangleMultiplicationIncoming": "tri_mul_in",
            "TriangleAttention": "tri_att_start tri_att_end",
            "SwiGLUTransition": "pair_transition",
            "DropoutRowwise": "ps_dropout_row_layer",
        }
    ),
    "PairFormerBlock": children(
        {
            "PairBlock": "pair_stack",
            "AttentionPairBias": "attn_pair_bias",
            "SwiGLUTransition": "single_transition",
        }
    ),
    "MSAPairWeightedAveraging": children(
        {
            "LayerNorm": "layer_norm_m layer_norm_z",
            "Linear": "linear_z linear_v linear_o linear_g",
            "Sigmoid": "sigmoid",
        }
    ),
    "OuterProductMean": children(
        {"LayerNorm": "layer_norm", "Linear": "linear_1 linear_2 linear_out"}
    ),
    "MSAModuleBlock": children(
        {
            "MSAPairWeightedAveraging nothing": "msa_att_row",
            "DropoutRowwise nothing": "msa_dropout_layer",
            "SwiGLUTransition nothing": "msa_transition",
            "OuterProductMean": "outer_product_mean",
            "PairBlock": "pair_stack",
        }
    ),
}
"""Submodules of classes of blocks."""

_ATTENTION = {"Linear": "linear_ada_out linear_z", "Attention": "mha", "Sigmoid": "sigmoid"}
DIFFUSION = {
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
"""Submodules of classes in transformers of the diffusion module."""

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
