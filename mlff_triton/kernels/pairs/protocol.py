"""Protocol of the operators on pairs and tokens, which kernels and references satisfy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, Protocol

from torch import Tensor

from mlff_triton.kernels.numerics.split import SplitOperand
from mlff_triton.kernels.pairs.types import (
    AverageWeights,
    ConditionedAttentionWeights,
    ConditionedTransitionWeights,
    Conditions,
    OuterProductWeights,
    TokenAttentionWeights,
    TransitionWeights,
    TriangleAttentionWeights,
    TriangleWeights,
    WindowAttentionWeights,
    WindowConditions,
)
from mlff_triton.kernels.types.norm import Norm


class PairOperators(Protocol):
    """Operators on pairs and tokens.

    `mlff_triton.kernels.pairs.operators` (fused Triton kernels) and
    `mlff_triton.kernels.pairs.reference.operators` (plain PyTorch) both implement it.
    Shapes are documented with the operators themselves.
    """

    def conditioned_attention_(
        self,
        x: Tensor,
        conditions: Conditions,
        bias: Tensor,
        weights: ConditionedAttentionWeights,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Update tokens of samples by conditioned attention in place."""

    def conditioned_layers_(
        self,
        x: Tensor,
        conditions: Sequence[Conditions],
        biases: Iterable[Tensor],
        layers: Sequence[tuple[ConditionedAttentionWeights, ConditionedTransitionWeights]],
        mask: Tensor | None = None,
    ) -> Tensor:
        """Update tokens of samples by layers of attention and transition in place."""

    def conditioned_transition_(
        self, x: Tensor, conditions: Conditions, weights: ConditionedTransitionWeights
    ) -> Tensor:
        """Update rows by a conditioned SwiGLU transition in place."""

    def conditioned_windows_(
        self,
        x: Tensor,
        conditions: WindowConditions,
        bias: Tensor,
        weights: WindowAttentionWeights,
        mask: Tensor | None = None,
        starts: Tensor | None = None,
    ) -> Tensor:
        """Update atoms of samples by conditioned attention within windows in place."""

    def linear_map(
        self, x: Tensor, weight: Tensor | SplitOperand, bias: Tensor | None = None
    ) -> Tensor:
        """Apply a linear map to rows, which are split or rounded as the weight is."""

    def outer_product_mean_(
        self,
        z: Tensor,
        msa: Tensor,
        weights: OuterProductWeights,
        mask: Tensor | None = None,
        *,
        eps: float | None = None,
    ) -> Tensor:
        """Update pairs by the outer product mean of an alignment in place."""

    def pair_average_(
        self, msa: Tensor, z: Tensor, weights: AverageWeights, mask: Tensor | None = None
    ) -> Tensor:
        """Update an alignment by averages weighted by pairs in place."""

    def pair_biases(
        self, z: Tensor, norm: Norm, weight: Tensor, shift: Tensor | None = None
    ) -> Tensor:
        """Compute biases of queries and keys from pairs."""

    def token_attention_(
        self, s: Tensor, bias: Tensor, weights: TokenAttentionWeights, mask: Tensor | None = None
    ) -> Tensor:
        """Update tokens by attention with biases of pairs in place."""

    def transition_(self, x: Tensor, weights: TransitionWeights) -> Tensor:
        """Update rows by a SwiGLU transition in place."""

    def triangle_attention_(
        self,
        z: Tensor,
        weights: TriangleAttentionWeights,
        mask: Tensor | None = None,
        *,
        ending: bool = False,
        bias_of_ending: Literal["key", "query"] = "key",
    ) -> Tensor:
        """Update pairs by triangle attention in place."""

    def triangle_multiplication_(
        self,
        z: Tensor,
        weights: TriangleWeights,
        mask: Tensor | None = None,
        *,
        incoming: bool = False,
        out: Tensor | None = None,
    ) -> Tensor:
        """Update pairs by triangle multiplication in place."""
