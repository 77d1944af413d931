"""Adapters for the blocks of Boltz-1 and Boltz-2, in the trunk and in all other pair stacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from mlff_triton.bio.core.recognition import children, has_structure, is_unmodified
from mlff_triton.bio.core.weights import exact, exact_norm
from mlff_triton.bio.models.structure.block import BlockForward, Inputs
from mlff_triton.bio.models.structure.layers import WATCHED, triangle_attention
from mlff_triton.bio.models.structure.maps import exact_weight, weight
from mlff_triton.bio.models.structure.updates import BlockWeights, PairWeights, TokenWeights
from mlff_triton.errors import InputError
from mlff_triton.kernels.types.pair_stack import (
    TokenAttentionWeights,
    TransitionWeights,
    TriangleWeights,
)

SOURCES = ("boltz.", "einops.")
HEADS_FIRST = "b ... h -> b h ..."
"""Order of the axes of biases."""

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
"""Submodules of classes of Boltz."""

BLOCKS = ("PairformerLayer", "PairformerNoSeqLayer")


class BoltzBlockForward(BlockForward):
    """Block of a pair stack of Boltz.

    As upstream, the tokens of Boltz-2 are computed in the dtype of the parameters under autocast,
    and each call advances the random numbers by those of four dropout masks.
    """

    supported = "Boltz"
    watches: ClassVar[tuple[str, ...]] = (
        *WATCHED,
        "num_heads",
        "pattern",
        "initial_norm",
        "no_update_s",
    )

    @classmethod
    def fits(cls, module: nn.Module) -> bool:
        """Return True for a block of Boltz with its own classes throughout."""
        if type(module).__name__ not in BLOCKS or not is_unmodified(module, *SOURCES):
            return False
        return has_structure(module, KNOWN)

    @property
    def token_dtype(self) -> torch.dtype:
        """Dtype of the products of tokens, which autocast does not change in Boltz-2."""
        follows = self.options.precision is not None or not hasattr(self.module, "pre_norm_s")
        return self.dtype if follows else self.parameter.dtype

    @property
    def updates_tokens(self) -> bool:
        """True if the block updates tokens."""
        return hasattr(self.module, "attention") and not getattr(self.module, "no_update_s", False)

    def collect(self) -> BlockWeights:
        """Read the weights."""
        block = self.module
        updates = pair_updates(block, block.transition_z)
        return BlockWeights(updates, tokens(block) if self.updates_tokens else None)

    def inputs(self, arguments: Mapping[str, Any]) -> Inputs:
        """Name the arguments."""
        s, z, mask, pair_mask = (arguments.get(n) for n in ("s", "z", "mask", "pair_mask"))
        return Inputs(s, z, mask, pair_mask)

    def refusal(self, arguments: Mapping[str, Any]) -> str | None:
        """Refuse parameters of other dtypes than float32, with which upstream cannot compute."""
        if self.parameter.dtype != torch.float32:
            return "its parameters are not float32; use the precision option of bio.accelerate"
        z = arguments.get("z")
        if isinstance(z, Tensor) and z.dim() != 4:
            return "pairs are not a tensor [B, N, N, C]"
        return super().refusal(arguments)

    def compute(self, arguments: Mapping[str, Any], begun: Any) -> Any:
        """Return updated tokens and pairs, or pairs alone."""
        skip_dropout(arguments["z"])
        return super().compute(arguments, begun)

    def result_dtype(self, x: Tensor) -> torch.dtype:
        """Return float32, to which the dropout masks of upstream convert."""
        return torch.promote_types(x.dtype, self.parameter.dtype)

    def outputs(self, s: Tensor | None, z: Tensor) -> Any:
        """Return tokens and pairs, or pairs if ``forward`` does not take tokens."""
        return (s, z) if "s" in self._names else z


def skip_dropout(z: Tensor) -> None:
    """Draw the random numbers of the four dropout masks, which upstream draws in every mode."""
    batch, n = z.shape[:2]
    for shape in (*[(batch, n, 1, 1)] * 3, (batch, 1, n, 1)):
        torch.rand(shape, device=z.device)


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
