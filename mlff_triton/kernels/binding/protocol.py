"""Protocol of the operators on complexes, which kernels and references satisfy."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from mlff_triton.kernels.binding.types import FrameNetwork, Layout, Readout, Tokens


class BindingOperators(Protocol):
    """Operators on complexes of proteins and ligands.

    `mlff_triton.kernels.binding.operators` (fused Triton kernels) and
    `mlff_triton.kernels.binding.reference.operators` (plain PyTorch) both implement it.
    Shapes are documented with the operators themselves.
    """

    def complex_tokens(
        self,
        positions: Tensor,
        kinds: Tensor,
        layout: Layout,
        centers: Tensor,
        axes: Tensor,
        groups: Tensor,
        kind_rows: Tensor,
    ) -> Tokens:
        """Compute the parts of tokens that all frames share."""

    def contact_energy(
        self,
        x: Tensor,
        positions: Tensor,
        layout: Layout,
        max_lengths: tuple[int, int],
        threshold: float,
        readout: Readout,
    ) -> Tensor:
        """Compute the energies of the contacts of complexes."""

    def frame_attention(
        self, tokens: Tokens, row_ptr: Tensor, max_length: int, directions: Tensor, n_heads: int
    ) -> Tensor:
        """Compute the attention of tokens in all frames within each complex."""

    def frame_network(
        self,
        tokens: Tokens,
        attended: Tensor,
        n_tokens: Tensor,
        directions: Tensor,
        network: FrameNetwork,
    ) -> Tensor:
        """Compute the part of a layer after attention, and its mean over frames."""

    def principal_axes(self, positions: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the centers and the principal axes of complexes."""
