"""Protocol of the convolutions on graphs, which kernels and references satisfy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from mlff_triton.kernels.convolution.types import TensorProduct
from mlff_triton.kernels.types.edges import Knots


class ConvolutionOperators(Protocol):
    """Equivariant convolutions on graphs.

    `mlff_triton.kernels.convolution.operators` (fused Triton kernels) and
    `mlff_triton.kernels.convolution.reference.operators` (plain PyTorch) both implement it.
    Shapes are documented with the operators themselves.
    """

    def edge_convolution(
        self,
        node: Tensor,
        edge_sh: Tensor,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        row_ptr: Tensor,
        senders: Tensor,
        product: TensorProduct,
        reduce: str = "sum",
    ) -> Tensor:
        """Convolve node features, with weights from a network per edge."""

    def edge_network(
        self,
        features: Tensor,
        ends: Sequence[tuple[Tensor, Tensor]],
        weight: Tensor,
        bias: Tensor,
        activation: str = "relu",
    ) -> Tensor:
        """Apply a layer of a network to the features of edges and the rows of their nodes."""

    def radial_convolution(
        self,
        node: Tensor,
        edge_sh: Tensor,
        distance: Tensor,
        table: Tensor,
        knots: Knots,
        row_ptr: Tensor,
        senders: Tensor,
        product: TensorProduct,
        reduce: str = "sum",
    ) -> Tensor:
        """Convolve node features, with weights that are functions of the distance."""
