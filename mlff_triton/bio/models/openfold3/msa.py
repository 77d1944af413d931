"""Adapter for the blocks of the MSA module of OpenFold3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from mlff_triton.bio.core.recognition import children, has_structure, is_unmodified
from mlff_triton.bio.models.openfold3 import adapter as openfold3
from mlff_triton.bio.models.openfold3.adapter import OpenFold3BlockForward, pair_updates, transition
from mlff_triton.bio.models.structure.block import Inputs
from mlff_triton.bio.models.structure.layers import WATCHED, norm, outer_product
from mlff_triton.bio.models.structure.maps import weight
from mlff_triton.bio.models.structure.updates import AlignmentWeights, BlockWeights
from mlff_triton.errors import InputError
from mlff_triton.kernels.types.pair_stack import AverageWeights

KNOWN = {
    **openfold3.KNOWN,
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
"""Submodules of classes of OpenFold3."""


class OpenFold3AlignmentForward(OpenFold3BlockForward):
    """Block of the MSA module, which updates an alignment and pairs."""

    supported = "the MSA module of OpenFold3"
    watches = (*WATCHED, "opm_first", "skip_msa_update")
    token_axes = 2

    @classmethod
    def fits(cls, module: nn.Module) -> bool:
        """Return True for a block of the MSA module with its own classes throughout."""
        if type(module).__name__ != "MSAModuleBlock":
            return False
        return is_unmodified(module, *openfold3.SOURCES) and has_structure(module, KNOWN)

    @property
    def updates_tokens(self) -> bool:
        """True, for the alignment."""
        return True

    def collect(self) -> BlockWeights:
        """Read the weights."""
        block = self.module
        average, last = None, None
        if not block.skip_msa_update:
            average, last = _average(block.msa_att_row), transition(block.msa_transition)
        elif not block.opm_first:
            raise InputError("it updates neither the alignment nor pairs by it")
        outer = block.outer_product_mean
        alignment = AlignmentWeights(
            outer_product(outer), average, last, bool(block.opm_first), outer.eps
        )
        return BlockWeights(pair_updates(block.pair_stack), alignment)

    def inputs(self, arguments: Mapping[str, Any]) -> Inputs:
        """Name the arguments."""
        m, z, mask, pair_mask = (arguments.get(n) for n in ("m", "z", "msa_mask", "pair_mask"))
        return Inputs(m, z, mask, pair_mask, bool(arguments.get("inplace_safe", False)))

    def refusal(self, arguments: Mapping[str, Any]) -> str | None:
        """Refuse inputs that wait in memory of the CPU."""
        if arguments.get("_offload_inference", False):
            return "it moves inputs to the CPU and back"
        return super().refusal(arguments)

    def begin(self, arguments: Mapping[str, Any]) -> Any:
        """Begin unless inputs wait in memory of the CPU."""
        if arguments.get("_offload_inference", False):
            return None
        return super().begin(arguments)

    def outputs(self, s: Tensor | None, z: Tensor) -> Any:
        """Return the alignment and pairs."""
        return s, z


def _average(module: Any) -> AverageWeights:
    maps = map(weight, (module.linear_v, module.linear_g, module.linear_z, module.linear_o))
    return AverageWeights(norm(module.layer_norm_m), norm(module.layer_norm_z), *maps)
