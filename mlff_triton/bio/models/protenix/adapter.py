"""Adapters for the blocks of Protenix, in the trunk and in all other pair stacks."""

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
from mlff_triton.errors import InputError
from mlff_triton.kernels.types.pair_stack import TransitionWeights

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
}
"""Submodules of classes of Protenix."""


class ProtenixBlockForward(BlockForward):
    """Block of a pair stack of Protenix, whose tokens and alignments have no mask."""

    supported = "Protenix"
    watches: ClassVar[tuple[str, ...]] = (
        *WATCHED,
        "num_heads",
        "has_s",
        "cross_attention_mode",
        "c_s",
    )
    skips_padding = False

    @classmethod
    def fits(cls, module: nn.Module) -> bool:
        """Return True for a block of Protenix with its own classes throughout."""
        if type(module).__name__ != "PairformerBlock" or not is_unmodified(module, *SOURCES):
            return False
        return has_structure(module, KNOWN)

    @property
    def updates_tokens(self) -> bool:
        """True if the block updates tokens."""
        return bool(self.module.c_s > 0)

    def collect(self) -> BlockWeights:
        """Read the weights."""
        block = self.module
        return BlockWeights(pair_updates(block), _tokens(block) if self.updates_tokens else None)

    def inputs(self, arguments: Mapping[str, Any]) -> Inputs:
        """Name the arguments. Tokens have no mask."""
        s, z, pair_mask = (arguments.get(name) for name in ("s", "z", "pair_mask"))
        return Inputs(s, z, None, pair_mask, bool(arguments.get("inplace_safe", False)))

    def outputs(self, s: Tensor | None, z: Tensor) -> Any:
        """Return tokens and pairs."""
        return s, z


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
