from __future__ import annotations

import pytest
import torch

from mlff_triton.errors import InputError
from mlff_triton.kernels.ops import radial_sums
from mlff_triton.kernels.ops.edge_tensors import edge_tensors
from mlff_triton.kernels.ops.message_passing import message_passing
from mlff_triton.kernels.ops.radial_factors import radial_factors
from mlff_triton.kernels.ops.reference import radial_sums as reference
from mlff_triton.testing import assert_close
from tests.support.radial_cases import Case, check, check_derivatives

OPERATORS = ["radial_message_passing", "radial_embedding"]


@pytest.mark.parametrize(("n_atoms", "channels"), [(0, 8), (1, 8), (6, 16)])
@pytest.mark.parametrize("name", OPERATORS)
def test_agrees_with_the_reference_to_second_order(name, n_atoms, channels, device, dtype):
    case = Case(n_atoms, channels, device)
    check(getattr(radial_sums, name), getattr(reference, name), case, dtype)


@pytest.mark.parametrize("name", OPERATORS)
def test_more_atoms_and_channels(name, device):
    case = Case(33, 64, device)
    found = case.call(getattr(radial_sums, name))(*[leaf.float() for leaf in case.leaves(name)])
    exact = case.call(getattr(reference, name))(*case.leaves(name))
    assert_close(found, exact, 0, torch.float32)


def test_made_of_a_look_up_and_a_sum(device):
    case = Case(6, 16, device)
    case.own = torch.zeros_like(case.own)
    case.elements = torch.full_like(case.elements, 0.5)  # P + Q = 1
    factors = radial_factors(case.distance, case.table, case.knots)
    message = case.call(radial_sums.radial_message_passing)(case.y, case.distance)
    assert_close(message, message_passing(case.y, factors, *case.graph), 0)
    x = case.call(radial_sums.radial_embedding)(case.vectors)
    directions = case.vectors / case.distance[:, None]
    assert_close(x, edge_tensors(directions, factors, case.graph[0]), 0)
    assert not x[:, -1].any(), "the last atom has no neighbors"


@pytest.mark.parametrize("name", OPERATORS)
def test_derivatives_of_reference(name, device):
    check_derivatives(getattr(reference, name), Case(4, 2, device))


def test_registered_completely(device):
    case = Case(4, 8, device)
    operators = torch.ops.mlff_triton
    distance, y = case.distance.requires_grad_(), case.y.requires_grad_()
    constants = case.table, case.own, *case.knots, *case.graph
    torch.library.opcheck(operators.radial_message_passing, (y, distance, *constants))
    constants = *case.elements, case.table, case.own[0], *case.knots, *case.graph
    vectors = case.vectors.requires_grad_()
    torch.library.opcheck(operators.radial_embedding, (vectors, case.species, *constants))


@pytest.mark.parametrize("name", OPERATORS)
def test_refuses_what_does_not_fit(name, device):
    case = Case(4, 12, device)
    operator, leaves = case.call(getattr(radial_sums, name)), case.leaves(name)
    with pytest.raises(InputError, match="12 channels: use a power of two, or radial_factors"):
        operator(*leaves)
    with pytest.raises(InputError, match="senders has the shape"):
        operator(*leaves[:-1], leaves[-1][1:])
    case.own.requires_grad_()
    with pytest.raises(InputError, match="own gets no gradient: detach it"):
        operator(*leaves)
