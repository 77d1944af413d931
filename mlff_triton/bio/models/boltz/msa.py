"""Adapter for the blocks of the MSA modules of Boltz-1 and Boltz-2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mlff_triton.bio.core.recognition import children, has_structure, is_unmodified
from mlff_triton.bio.core.weights import exact, exact_norm
from mlff_triton.bio.models.boltz import adapter as boltz
from mlff_triton.bio.models.boltz.adapter import BoltzBlockForward, pair_updates, transition
from mlff_triton.bio.models.structure.block import Inputs
from mlff_triton.bio.models.structure.layers import WATCHED
from mlff_triton.bio.models.structure.maps import exact_weight, weight
from mlff_triton.bio.models.structure.updates import AlignmentWeights, BlockWeights
from mlff_triton.kernels.types.pair_stack import AverageWeights, OuterProductWeights

_ALIGNMENT = {
    "Transition": "msa_transition",
    "PairWeightedAveraging": "pair_weighted_averaging",
    "OuterProductMean": "outer_product_mean",
}
_PARTS = {
    "PairWeightedAveraging": children(
        {"LayerNorm": "norm_m norm_z", "Linear": "proj_m proj_g proj_z proj_o"}
    ),
    "OuterProductMean": children({"LayerNorm": "norm", "Linear": "proj_a proj_b proj_o"}),
}
BOLTZ1 = children(
    {
        **_ALIGNMENT,
        "Transition": "msa_transition z_transition",
        "TriangleMultiplicationOutgoing": "tri_mul_out",
        "TriangleMultiplicationIncoming": "tri_mul_in",
        "TriangleAttention": "tri_att_start",
        "TriangleAttentionEndingNode": "tri_att_end",
    }
)
"""Submodules of a block of Boltz-1."""

BOLTZ2 = children({**_ALIGNMENT, "PairformerNoSeqLayer": "pairformer_layer"})
"""Submodules of a block of Boltz-2."""


class BoltzAlignmentForward(BoltzBlockForward):
    """Block of the MSA module, which updates an alignment and pairs."""

    supported = "the MSA module of Boltz"
    watches = (*WATCHED, "num_heads")
    token_axes = 2

    @classmethod
    def fits(cls, module: nn.Module) -> bool:
        """Return True for a block of an MSA module of Boltz with its own classes throughout."""
        if type(module).__name__ != "MSALayer" or not is_unmodified(module, *boltz.SOURCES):
            return False
        known = {**boltz.KNOWN, **_PARTS}
        return any(has_structure(module, {**known, "MSALayer": own}) for own in (BOLTZ1, BOLTZ2))

    @property
    def updates_tokens(self) -> bool:
        """True, for the alignment."""
        return True

    @property
    def token_dtype(self) -> torch.dtype:
        """Dtype of the products of the alignment, that of pairs."""
        return self.dtype

    def collect(self) -> BlockWeights:
        """Read the weights."""
        block = self.module
        pairs = getattr(block, "pairformer_layer", None)
        if pairs is None:
            updates = pair_updates(block, block.z_transition)
        else:
            updates = pair_updates(pairs, pairs.transition_z)
        outer = _outer_product(block.outer_product_mean)
        average = _average(block.pair_weighted_averaging)
        return BlockWeights(
            updates, AlignmentWeights(outer, average, transition(block.msa_transition))
        )

    def inputs(self, arguments: Mapping[str, Any]) -> Inputs:
        """Name the arguments."""
        m, z, mask, pair_mask = (arguments.get(n) for n in ("m", "z", "msa_mask", "token_mask"))
        return Inputs(m, z, mask, pair_mask)

    def compute(self, arguments: Mapping[str, Any], begun: Any) -> Any:
        """Return updated pairs and the updated alignment."""
        msa = arguments["m"]
        torch.rand((*msa.shape[:2], 1, 1), device=msa.device)  # dropout, which upstream draws
        return super().compute(arguments, begun)

    def outputs(self, s: Tensor | None, z: Tensor) -> Any:
        """Return pairs and the alignment."""
        return z, s


def _outer_product(module: Any) -> OuterProductWeights:
    left, right = weight(module.proj_a), weight(module.proj_b)
    out = exact_weight(module.proj_o)
    return OuterProductWeights(exact_norm(module.norm), left, right, out, exact(module.proj_o.bias))


def _average(module: Any) -> AverageWeights:
    maps = map(weight, (module.proj_m, module.proj_g, module.proj_z, module.proj_o))
    return AverageWeights(exact_norm(module.norm_m), exact_norm(module.norm_z), *maps)
