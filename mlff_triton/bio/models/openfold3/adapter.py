"""Adapters for the blocks of OpenFold3, in the trunk and in all other pair stacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor, nn

from mlff_triton.bio.core.recognition import children, has_structure, is_unmodified
from mlff_triton.bio.models.structure.block import BlockForward, Inputs
from mlff_triton.bio.models.structure.layers import (
    WATCHED,
    norm,
    token_attention,
    triangle,
    triangle_attention,
)
from mlff_triton.bio.models.structure.maps import weight
from mlff_triton.bio.models.structure.updates import BlockWeights, PairWeights, TokenWeights
from mlff_triton.kernels.types.pair_stack import TransitionWeights

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
}
"""Submodules of classes of OpenFold3."""

BLOCKS = ("PairFormerBlock", "PairBlock")


class OpenFold3BlockForward(BlockForward):
    """Block of a pair stack of OpenFold3."""

    supported = "OpenFold3"
    watches: ClassVar[tuple[str, ...]] = WATCHED

    @classmethod
    def fits(cls, module: nn.Module) -> bool:
        """Return True for a block of OpenFold3 with its own classes throughout."""
        if type(module).__name__ not in BLOCKS or not is_unmodified(module, *SOURCES):
            return False
        return has_structure(module, KNOWN)

    @property
    def updates_tokens(self) -> bool:
        """True if the block updates tokens."""
        return type(self.module).__name__ == "PairFormerBlock"

    def collect(self) -> BlockWeights:
        """Read the weights."""
        block = self.module
        if not self.updates_tokens:
            return BlockWeights(pair_updates(block), None)
        attention = block.attn_pair_bias
        tokens = TokenWeights(
            token_attention(attention.layer_norm_a, attention.mha),
            bias_norm=norm(attention.layer_norm_z),
            bias=weight(attention.linear_z),
            transition=transition(block.single_transition),
        )
        return BlockWeights(pair_updates(block.pair_stack), tokens)

    def inputs(self, arguments: Mapping[str, Any]) -> Inputs:
        """Name the arguments."""
        s, z, mask, pair_mask = (arguments.get(n) for n in ("s", "z", "single_mask", "pair_mask"))
        return Inputs(s, z, mask, pair_mask, bool(arguments.get("inplace_safe", False)))

    def outputs(self, s: Tensor | None, z: Tensor) -> Any:
        """Return tokens and pairs, or pairs alone."""
        return (s, z) if self.updates_tokens else z


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
