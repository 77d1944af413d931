"""Random graphs and radial tables, and checks of the operators that use them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.types.edges import Knots
from mlff_triton.neighbors.graph import Graph
from tests.support.operators import assert_matches


class Case:
    """Random graph and random tables; the last atom has no neighbors."""

    def __init__(self, n_atoms: int, channels: int, device: str) -> None:
        generator = torch.Generator().manual_seed(n_atoms + channels)

        def randn(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64).to(device)

        linked = torch.rand(n_atoms, n_atoms, generator=generator) < 2 / max(n_atoms, 1)
        linked = (linked | linked.T).fill_diagonal_(False)
        linked[-1:] = linked[:, -1:] = False
        receivers, senders = linked.nonzero(as_tuple=True)
        shifts = torch.zeros(len(senders), 3, dtype=torch.int64)
        graph = Graph.from_pairs(receivers, senders, shifts, n_atoms).to(device)
        self.graph = graph.row_ptr, graph.senders, graph.reverse
        vectors = randn(n_atoms, 3)[graph.receivers] - randn(n_atoms, 3)[graph.senders]
        vectors = vectors - vectors[graph.reverse]
        lengths = 0.6 + 2.2 * torch.sigmoid(vectors.square().sum(1) - 3)
        self.vectors = vectors * (lengths / vectors.norm(dim=1))[:, None]
        self.distance = lengths
        self.y = randn(9, n_atoms, channels)
        self.species = torch.arange(n_atoms, device=device) % 3
        self.elements = randn(2, 3, channels)
        self.own = randn(3, channels)
        widths = torch.tensor([1, 1, 2, 4, 1, 3])
        zero = torch.zeros(1, dtype=torch.int64)
        positions = 0.5 + 0.2 * torch.cat([zero, widths.cumsum(0)]).double()
        intervals = torch.arange(6, dtype=torch.int32).repeat_interleave(widths)
        self.knots = Knots(positions.to(device), intervals.to(device))
        self.table = randn(len(positions), 3, 3, channels)

    def leaves(self, name: str) -> list[Tensor]:
        """Return the inputs that get gradients, by the name of the operator."""
        return {
            "radial_factors": [self.distance],
            "radial_message_passing": [self.y, self.distance],
            "radial_embedding": [self.vectors],
        }[name]

    def call(self, operator: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Return an operator as a function of the inputs that get gradients."""

        def evaluate(*leaves: Tensor) -> Tensor:
            own, table, elements = (t.to(leaves[0]) for t in (self.own, self.table, self.elements))
            constants: dict[str, tuple[Any, ...]] = {
                "radial_factors": (table, self.knots),
                "radial_message_passing": (table, own, self.knots, *self.graph),
                "radial_embedding": (
                    self.species,
                    *elements,
                    table,
                    own[0],
                    self.knots,
                    *self.graph,
                ),
            }
            return operator(*leaves, *constants[operator.__name__])

        return evaluate


def check(
    operator: Callable[..., Tensor],
    reference: Callable[..., Tensor],
    case: Case,
    dtype: torch.dtype,
) -> None:
    """Compare an operator with its reference of the same name, to second order."""
    leaves = [leaf.to(dtype) for leaf in case.leaves(operator.__name__)]
    assert_matches(case.call(operator), case.call(reference), *leaves)


def check_derivatives(reference: Callable[..., Tensor], case: Case) -> None:
    """Compare a reference with finite differences, to second order."""
    leaves = [leaf.requires_grad_() for leaf in case.leaves(reference.__name__)]
    assert torch.autograd.gradcheck(case.call(reference), leaves)
    assert torch.autograd.gradgradcheck(case.call(reference), leaves)


def check_refusals(operator: Callable[..., Tensor], device: str) -> None:
    """Check that wrong shapes, numbers of channels and gradients of constants raise."""
    case = Case(4, 12, device)
    call, leaves = case.call(operator), case.leaves(operator.__name__)
    with pytest.raises(InputError, match="12 channels: use a power of two, or radial_factors"):
        call(*leaves)
    with pytest.raises(InputError, match="senders has the shape"):
        call(*leaves[:-1], leaves[-1][1:])
    case.own.requires_grad_()
    with pytest.raises(InputError, match="own gets no gradient: detach it"):
        call(*leaves)
