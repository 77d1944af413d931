"""Adapter for the blocks of the MSA module of Protenix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from mlff_triton.bio.core.recognition import children, has_structure, is_unmodified
from mlff_triton.bio.models.protenix import adapter as protenix
from mlff_triton.bio.models.protenix.adapter import (
    NORM,
    ProtenixBlockForward,
    pair_updates,
    transition,
)
from mlff_triton.bio.models.structure.block import Inputs
from mlff_triton.bio.models.structure.layers import norm, outer_product
from mlff_triton.bio.models.structure.maps import weight
from mlff_triton.bio.models.structure.updates import AlignmentWeights, BlockWeights
from mlff_triton.errors import InputError
from mlff_triton.kernels.types.pair_stack import AverageWeights

KNOWN = {
    **protenix.KNOWN,
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
"""Submodules of classes of Protenix."""


class ProtenixAlignmentForward(ProtenixBlockForward):
    """Block of the MSA module, which updates an alignment, unless it is the last one, and pairs."""

    supported = "the MSA module of Protenix"
    watches = (*ProtenixBlockForward.watches, "is_last_block", "dim")
    token_axes = 2

    @classmethod
    def fits(cls, module: nn.Module) -> bool:
        """Return True for a block of the MSA module with its own classes throughout."""
        if type(module).__name__ != "MSABlock":
            return False
        return is_unmodified(module, *protenix.SOURCES) and has_structure(module, KNOWN)

    @property
    def updates_tokens(self) -> bool:
        """True, for the alignment."""
        return True

    def collect(self) -> BlockWeights:
        """Read the weights."""
        block = self.module
        average, last = None, None
        if not block.is_last_block:
            stack = block.msa_stack
            average = _average(stack.msa_pair_weighted_averaging)
            last = transition(stack.transition_m)
        outer = block.outer_product_mean_msa
        alignment = AlignmentWeights(
            outer_product(outer),
            average,
            last,
            pairs_first=True,
            eps=outer.eps,
            averages_all=True,
        )
        return BlockWeights(pair_updates(block.pair_stack), alignment)

    def inputs(self, arguments: Mapping[str, Any]) -> Inputs:
        """Name the arguments. The alignment has no mask, and no inputs are overwritten."""
        m, z, pair_mask = (arguments.get(name) for name in ("m", "z", "pair_mask"))
        return Inputs(m, z, None, pair_mask)

    def outputs(self, s: Tensor | None, z: Tensor) -> Any:
        """Return the alignment, or None after the last block, and pairs."""
        return None if self.module.is_last_block else s, z


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
