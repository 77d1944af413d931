"""Protocol of the operators of TensorNet2, which kernels, loops and references satisfy."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from mlff_triton.kernels.types.charge_network import ChargeNetwork
from mlff_triton.kernels.types.charges import (
    AtomOrder,
    CoulombSums,
    EwaldField,
    ReactionField,
    SumParts,
)
from mlff_triton.kernels.types.edge_rows import EdgeRows
from mlff_triton.kernels.types.edges import Edges
from mlff_triton.kernels.types.interaction_network import InteractionNetwork


class ChargedOperators(Protocol):
    """Operators that a step of TensorNet2 needs beyond those of TensorNet, forward and backward.

    `mlff_triton.kernels.tensornet2.operators` (fused Triton kernels) and
    `mlff_triton.kernels.tensornet2.reference.operators` (plain PyTorch) both implement it. Shapes
    are documented with the operators themselves. Arguments are positional, in the same order.
    """

    def predict_charges(
        self, x: Tensor, inverse: Tensor | None, network: ChargeNetwork, /
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Predict charges and weights of atoms; return them and two hidden values."""

    def predict_charges_backward(
        self,
        grad: Tensor,
        x: Tensor,
        inverse: Tensor | None,
        network: ChargeNetwork,
        z1: Tensor,
        z2: Tensor,
        /,
    ) -> Tensor:
        """Propagate gradients of predictions back to the invariants of tensors."""

    def equilibrate(
        self,
        predicted: Tensor,
        totals: Tensor,
        systems: Tensor,
        rank: Tensor,
        ptr: Tensor,
        charges: Tensor,
        floor: float = 0.0,
        sum_parts: SumParts | None = None,
        /,
    ) -> Tensor:
        """Share the missing charge of each system; write charges, and return what atoms share."""

    def equilibrate_backward(
        self,
        grad: Tensor,
        predicted: Tensor,
        shared: Tensor,
        systems: Tensor,
        rank: Tensor,
        ptr: Tensor,
        floor: float = 0.0,
        sum_parts: SumParts | None = None,
        /,
    ) -> Tensor:
        """Propagate gradients of charges back to the predictions."""

    def charge_terms(self, charges: Tensor, network: InteractionNetwork, /) -> Tensor:
        """Map the charges of receivers and senders into the networks of their edges."""

    def charge_gradients(
        self,
        grad_sent: Tensor,
        by_edge: Tensor,
        by_atom: Tensor,
        network: InteractionNetwork,
        edges: Edges,
        others: Tensor | None,
        /,
    ) -> Tensor:
        """Sum the gradients of charges over the networks of their edges, and add others."""

    def edge_rows(self, edges: Edges, /) -> EdgeRows:
        """Count the edges of all atoms up to each one."""

    def edge_messages(
        self, y: Tensor, terms: Tensor, network: InteractionNetwork, edges: Edges, rows: EdgeRows, /
    ) -> tuple[Tensor, EdgeRows]:
        """Sum messages, whose factors are networks of distances and charges; return kept rows."""

    def edge_messages_backward(
        self,
        grad: Tensor,
        y: Tensor,
        direct: Tensor,
        terms: Tensor,
        network: InteractionNetwork,
        edges: Edges,
        rows: EdgeRows,
        slope: Tensor,
        accumulate: bool,
        /,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Propagate gradients of messages back to senders and charges, and write ``slope``."""

    def normalized_product(self, y: Tensor, message: Tensor, group: str, /) -> Tensor:
        """Multiply tensors with messages, and normalize the products."""

    def tensor_gradients(
        self,
        grad: Tensor,
        residual: Tensor | None,
        x: Tensor,
        inverse: Tensor | None,
        factors: Tensor,
        delta: Tensor | None,
        /,
    ) -> tuple[Tensor, Tensor]:
        """Propagate gradients of tensors and of their invariants back to the last update."""

    def scale_gradients(
        self, grad: Tensor, mapped: Tensor, scales: Tensor, activation: str, /
    ) -> tuple[Tensor, Tensor]:
        """Propagate gradients of the embedding back to its mapped tensors and their scales."""

    def coulomb_pairs(
        self,
        positions: Tensor,
        charges: Tensor,
        weights: Tensor,
        mean_weights: Tensor,
        order: AtomOrder,
        /,
    ) -> CoulombSums:
        """Compute Coulomb energies over all pairs, with all gradients."""

    def coulomb_edges(
        self,
        charges: Tensor,
        weights: Tensor,
        mean_weights: Tensor,
        edges: Edges,
        field: ReactionField | EwaldField,
        order: Tensor,
        /,
    ) -> CoulombSums:
        """Compute Coulomb energies over edges, with all gradients."""
