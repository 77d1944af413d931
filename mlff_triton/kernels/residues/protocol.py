"""Protocol of the operators on residues, which kernels and references satisfy."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from mlff_triton.kernels.residues.types import (
    BackboneWeights,
    Choices,
    DecoderWeights,
    EdgeNetwork,
    Graph,
    Projections,
    ResidueNetwork,
    Schedule,
)
from mlff_triton.kernels.types.norm import Norm


class ResidueOperators(Protocol):
    """Operators on residues.

    `mlff_triton.kernels.residues.operators` (fused Triton kernels) and
    `mlff_triton.kernels.residues.reference.operators` (plain PyTorch) both implement it.
    Shapes are documented with the operators themselves.
    """

    def decode(
        self, graph: Graph, weights: DecoderWeights, schedule: Schedule, choices: Choices
    ) -> tuple[Tensor, Tensor]:
        """Draw amino acids one after another, each given those drawn before."""

    def edge_update(
        self,
        edges: Tensor,
        receivers: Tensor,
        senders: Tensor,
        sources: Tensor,
        network: EdgeNetwork,
        norm: Norm,
    ) -> Tensor:
        """Update the edges of a graph of residues."""

    def nearest_residues(
        self, positions: Tensor, mask: Tensor, count: int
    ) -> tuple[Tensor, Tensor]:
        """Find the nearest neighbors of each residue in its protein, including itself."""

    def project(self, x: Tensor, projections: Projections) -> tuple[Tensor, ...]:
        """Apply linear maps to residues."""

    def residue_edges(
        self,
        atoms: Tensor,
        sources: Tensor,
        distances: Tensor,
        numbers: Tensor,
        chains: Tensor,
        weights: BackboneWeights,
    ) -> Tensor:
        """Compute the features of edges between residues."""

    def residue_update(
        self,
        x: Tensor,
        edges: Tensor,
        receivers: Tensor,
        senders: Tensor,
        sources: Tensor,
        mask: Tensor,
        message: EdgeNetwork,
        network: ResidueNetwork,
        weights: Tensor | None = None,
    ) -> Tensor:
        """Update residues by messages from their neighbors."""
