"""Submodules of classes of Protenix, by which its modules are recognized."""

from __future__ import annotations

from mlff_triton.bio.core.recognition import children
from mlff_triton.bio.models.structure.pair_score import BLOCK

SOURCES = ("protenix.",)

NORM = "OpenFoldLayerNorm FusedLayerNorm"
_TRIANGLE = children(
    {
        NORM: "layer_norm_in layer_norm_out",
        "OpenfoldLinear": "linear_g linear_z linear_a_p linear_a_g linear_b_p linear_b_g",
        "Sigmoid": "sigmoid",
    }
)
KNOWN = {
    "TriangleMultiplicationOutgoing": _TRIANGLE,
    "TriangleMultiplicationIncoming": _TRIANGLE,
    "TriangleAttention": children(
        {NORM: "layer_norm", "OpenfoldLinear": "linear", "Attention": "mha"}
    ),
    "Attention": children(
        {
            "OpenfoldLinear Linear": "linear_q linear_k linear_v linear_o linear_g",
            "Sigmoid": "sigmoid",
        }
    ),
    "Transition": children(
        {NORM: "layernorm1", "Linear": "linear_no_bias_a linear_no_bias_b linear_no_bias"}
    ),
    "DropoutRowwise": children({"Dropout": "dropout"}),
    "AttentionPairBias": children(
        {NORM: "layernorm_a layernorm_z", "Linear": "linear_nobias_z", "Attention": "attention"}
    ),
    "PairformerBlock": children(
        {
            "TriangleMultiplicationOutgoing": "tri_mul_out",
            "TriangleMultiplicationIncoming": "tri_mul_in",
            "TriangleAttention": "tri_att_start tri_att_end",
            "Transition": "pair_transition",
            "DropoutRowwise": "dropout_row",
            "AttentionPairBias nothing": "attention_pair_bias",
            "Transition nothing": "single_transition",
        }
    ),
    "MSAPairWeightedAveraging": children(
        {
            NORM: "layernorm_m layernorm_z",
            "Linear": "linear_no_bias_mv linear_no_bias_z linear_no_bias_mg linear_no_bias_out",
            "Softmax": "softmax_w",
        }
    ),
    "OuterProductMean": children(
        {NORM: "layer_norm", "OpenfoldLinear": "linear_1 linear_2 linear_out"}
    ),
    "MSAStack": children(
        {
            "MSAPairWeightedAveraging": "msa_pair_weighted_averaging",
            "DropoutRowwise": "dropout_row",
            "Transition": "transition_m",
        }
    ),
    "MSABlock": children(
        {
            "OuterProductMean": "outer_product_mean_msa",
            "MSAStack nothing": "msa_stack",
            "PairformerBlock": "pair_stack",
        }
    ),
}
"""Submodules of classes of blocks."""

DIFFUSION = {
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
"""Submodules of classes in transformers of the diffusion module."""

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
