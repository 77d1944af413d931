"""Protocol of the operators of a step, which kernels, loops and references satisfy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from mlff_triton.kernels.numerics.split import SplitWeight
from mlff_triton.kernels.types.edges import Edges
from mlff_triton.kernels.types.nuclei import Nuclei


class StepOperators(Protocol):
    """Operators that compute energies, forces and virials of a TensorNet, forward and backward.

    `mlff_triton.kernels.tensornet.operators` (fused Triton kernels) and
    `mlff_triton.kernels.tensornet.reference.operators` (plain PyTorch) both implement it. Shapes
    are documented with the operators themselves. Arguments are positional, in the same order.
    """

    def tensor_embedding(
        self,
        species: Tensor,
        receiver: Tensor,
        sender: Tensor,
        table: Tensor,
        own: Tensor,
        edges: Edges,
        /,
    ) -> tuple[Tensor, Tensor]:
        """Sum the pair embeddings around each atom; return tensors and the layer norm's input."""

    def tensor_embedding_backward(
        self,
        grad: Tensor,
        species: Tensor,
        receiver: Tensor,
        sender: Tensor,
        table: Tensor,
        edges: Edges,
        slope: Tensor | None,
        /,
    ) -> Tensor:
        """Compute the gradient of the energy along every edge."""

    def scalar_network(
        self,
        norm: Tensor,
        gain: Tensor,
        shift: Tensor,
        weight1: SplitWeight,
        bias1: Tensor,
        weight2: SplitWeight,
        bias2: Tensor,
        activation: str,
        /,
    ) -> tuple[Tensor, Tensor]:
        """Apply layer norm and the scalar network; return hidden values and scales."""

    def scalar_network_backward(
        self,
        grad: Tensor,
        norm: Tensor,
        gain: Tensor,
        weight1: SplitWeight,
        weight2: SplitWeight,
        hidden: Tensor,
        activation: str,
        /,
    ) -> Tensor:
        """Propagate gradients of the scales back to the layer norm's input."""

    def embed(
        self, x: Tensor, weight: SplitWeight, scales: Tensor, activation: str, /
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Map and scale the embedded tensors; return them, normalized ones and inverse norms."""

    def embed_backward(
        self,
        grad_y: Tensor,
        weight: SplitWeight,
        residual: Tensor,
        x: Tensor,
        inverse: Tensor,
        mapped: Tensor,
        scales: Tensor,
        activation: str,
        /,
    ) -> tuple[Tensor, Tensor]:
        """Propagate gradients of the first layer's input back through `embed`."""

    def embed_input_backward(
        self, grad: Tensor, weight: SplitWeight, x: Tensor, grad_norm: Tensor, /
    ) -> Tensor:
        """Propagate gradients through the embedding's linear maps, and add those of its norm."""

    def linear(self, x: Tensor, weight: SplitWeight, others: int = 0, /) -> Tensor:
        """Map the three parts of every tensor linearly; append rows that are to be filled."""

    def message_product(
        self,
        y: Tensor,
        table: Tensor,
        own: Tensor,
        edges: Edges,
        charge_factor: Tensor,
        group: str,
        /,
    ) -> tuple[Tensor, Tensor]:
        """Sum messages and multiply them with the receivers' tensors; return both."""

    def message_backward(
        self,
        grad: Tensor,
        y: Tensor,
        direct: Tensor,
        table: Tensor,
        own: Tensor,
        edges: Edges,
        slope: Tensor,
        accumulate: bool,
        /,
    ) -> Tensor:
        """Propagate gradients of messages back to the senders, and write ``slope`` per edge."""

    def product_backward(
        self,
        grad_delta: Tensor,
        weight: SplitWeight,
        y: Tensor,
        message: Tensor,
        charge_factor: Tensor,
        group: str,
        others: int = 0,
        /,
    ) -> tuple[Tensor, Tensor]:
        """Propagate gradients of a layer's update back to its tensors and its messages.

        Rows that are to be filled follow the gradients of messages.
        """

    def update(
        self, p: Tensor, weight: SplitWeight, x: Tensor, charge_factor: Tensor, normalize: bool, /
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute a layer's update; return it, the updated tensors and their inverse norms."""

    def update_backward(
        self,
        grad_y: Tensor,
        weight: SplitWeight,
        residual: Tensor,
        x: Tensor,
        inverse: Tensor,
        delta: Tensor,
        charge_factor: Tensor,
        /,
    ) -> tuple[Tensor, Tensor]:
        """Propagate gradients of a layer's input back through the update before it."""

    def readout(
        self, x: Tensor, gain: Tensor, shift: Tensor, weight: SplitWeight, bias: Tensor, /
    ) -> Tensor:
        """Reduce tensors to invariants, normalize them and map them linearly."""

    def readout_backward(
        self,
        grad: Tensor,
        x: Tensor,
        gain: Tensor,
        weight: SplitWeight,
        delta: Tensor,
        charge_factor: Tensor,
        /,
    ) -> tuple[Tensor, Tensor]:
        """Propagate gradients of the readout back to the last tensors and the last update."""

    def scalar_head(
        self,
        hidden: Tensor,
        weight1: SplitWeight,
        bias1: Tensor,
        adjoint1: SplitWeight,
        weight2: Tensor,
        bias2: Tensor,
        first: str,
        activation: str,
        deviations: SplitWeight | None = None,
        order: Tensor | None = None,
        /,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Compute energies, gradients and uncertainties for a head of two linear maps."""

    def gated_head(
        self,
        hidden: Tensor,
        values: Sequence[tuple[Tensor, Tensor]],
        gates: Sequence[tuple[Tensor, Tensor]],
        scale: float,
        first: str,
        deviations: SplitWeight | None = None,
        order: Tensor | None = None,
        /,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Compute energies, gradients and uncertainties for a gated head."""

    def deep_head(
        self,
        hidden: Tensor,
        maps: Sequence[tuple[Tensor, Tensor]],
        first: str,
        activation: str,
        deviations: SplitWeight | None = None,
        order: Tensor | None = None,
        /,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Compute energies, gradients and uncertainties for a head of more linear maps."""

    def repulsion(
        self, edge_grad: Tensor, species: Tensor, nuclei: Nuclei, edges: Edges, /
    ) -> Tensor:
        """Return the nuclear repulsion per atom, and add its gradients to ``edge_grad``."""

    def forces(
        self,
        edge_grad: Tensor,
        edges: Edges,
        energies: Tensor,
        offsets: Tensor,
        order: Tensor,
        halves: bool = False,
        others: tuple[Tensor, Tensor] | None = None,
        /,
    ) -> tuple[Tensor, Tensor]:
        """Return forces, and energies and virials per atom, in the user's order of atoms."""

    def totals(self, atoms: Tensor, status: Tensor, system_ptr: Tensor, /) -> Tensor:
        """Sum energies and virials over the atoms of each system, and find the highest status."""
