"""Submodules of classes of Boltz-1 and Boltz-2, used to recognize their modules."""

from __future__ import annotations

from mlff_triton.bio.core.recognition import children

SOURCES = ("boltz.", "einops.")

_TRIANGLE = children({"LayerNorm": "norm_in norm_out", "Linear": "p_in g_in p_out g_out"})
_ATTENTION = children({"LayerNorm": "layer_norm", "Linear": "linear", "Attention": "mha"})
_PAIRS = children(
    {
        "TriangleMultiplicationOutgoing": "tri_mul_out",
        "TriangleMultiplicationIncoming": "tri_mul_in",
        "TriangleAttention": "tri_att_start",
        "TriangleAttentionEndingNode": "tri_att_end",
        "Transition": "transition_z",
    }
)
KNOWN = {
    "TriangleMultiplicationOutgoing": _TRIANGLE,
    "TriangleMultiplicationIncoming": _TRIANGLE,
    "TriangleAttention": _ATTENTION,
    "TriangleAttentionEndingNode": _ATTENTION,
    "Attention": children(
        {"Linear": "linear_q linear_k linear_v linear_o linear_g", "Sigmoid": "sigmoid"}
    ),
    "Transition": children({"LayerNorm": "norm", "Linear": "fc1 fc2 fc3", "SiLU": "silu"}),
    "AttentionPairBias": children(
        {
            "Linear": "proj_q proj_k proj_v proj_g proj_o",
            "Sequential": "proj_z",
            "LayerNorm nothing": "norm_s",
        }
    ),
    "Sequential": children({"LayerNorm": "0", "Linear": "1", "Rearrange": "2"}),
    "PairformerNoSeqLayer": _PAIRS,
    "PairformerLayer": {
        **_PAIRS,
        **children(
            {
                "AttentionPairBias nothing": "attention",
                "Transition nothing": "transition_s",
                "LayerNorm nothing": "pre_norm_s",
                "LayerNorm Identity nothing": "s_post_norm",
            }
        ),
    },
}
"""Submodules of classes of blocks of pair stacks."""

_MSA = {
    "Transition": "msa_transition",
    "PairWeightedAveraging": "pair_weighted_averaging",
    "OuterProductMean": "outer_product_mean",
}
_MSA_PARTS = {
    **KNOWN,
    "PairWeightedAveraging": children(
        {"LayerNorm": "norm_m norm_z", "Linear": "proj_m proj_g proj_z proj_o"}
    ),
    "OuterProductMean": children({"LayerNorm": "norm", "Linear": "proj_a proj_b proj_o"}),
}
MSA = (
    {
        **_MSA_PARTS,
        "MSALayer": children(
            {
                **_MSA,
                "Transition": "msa_transition z_transition",
                "TriangleMultiplicationOutgoing": "tri_mul_out",
                "TriangleMultiplicationIncoming": "tri_mul_in",
                "TriangleAttention": "tri_att_start",
                "TriangleAttentionEndingNode": "tri_att_end",
            }
        ),
    },
    {
        **_MSA_PARTS,
        "MSALayer": children({**_MSA, "PairformerNoSeqLayer": "pairformer_layer"}),
    },
)
"""Submodules of classes of blocks of the MSA modules of Boltz-1 and Boltz-2."""

DIFFUSION = {
    "AdaLN": children({"LayerNorm": "a_norm s_norm", "Linear": "s_scale s_bias"}),
    "AttentionPairBias": children(
        {"Linear": "proj_q proj_k proj_v proj_g proj_o", "Rearrange Sequential": "proj_z"}
    ),
    "Sequential": children(
        {"Linear LayerNorm": "0", "Linear Sigmoid SwiGLU": "1", "Rearrange nothing": "2"}
    ),
    "ConditionedTransitionBlock": children(
        {
            "AdaLN": "adaln",
            "Sequential": "swish_gate output_projection",
            "Linear": "a_to_b b_to_a",
        }
    ),
    "DiffusionTransformerLayer": children(
        {
            "AdaLN": "adaln",
            "AttentionPairBias": "pair_bias_attn",
            "Linear": "output_projection_linear",
            "Sequential": "output_projection",
            "ConditionedTransitionBlock": "transition",
            "LayerNorm Identity nothing": "post_lnorm",
        }
    ),
}
"""Submodules of classes in layers of diffusion transformers."""
