from __future__ import annotations

import pytest
import torch

from mlff_triton.kernels.ops.edge_tensors import edge_tensors
from mlff_triton.kernels.ops.radial_embedding import radial_embedding
from mlff_triton.kernels.ops.radial_factors import radial_factors
from mlff_triton.kernels.ops.reference import radial_embedding as reference
from mlff_triton.testing import assert_close
from tests.support.radial_cases import Case, check, check_derivatives, check_refusals


@pytest.mark.parametrize(("n_atoms", "channels"), [(0, 8), (1, 8), (6, 16)])
def test_agrees_with_the_reference_to_second_order(n_atoms, channels, device, dtype):
    case = Case(n_atoms, channels, device)
    check(radial_embedding, reference.radial_embedding, case, dtype)


def test_more_atoms_and_channels(device):
    case = Case(33, 64, device)
    found = case.call(radial_embedding)(case.vectors.float())
    exact = case.call(reference.radial_embedding)(case.vectors)
    assert_close(found, exact, 0, torch.float32)


def test_equals_a_look_up_and_a_sum(device):
    case = Case(6, 16, device)
    case.own = torch.zeros_like(case.own)
    case.elements = torch.full_like(case.elements, 0.5)  # P + Q = 1
    factors = radial_factors(case.distance, case.table, case.knots)
    x = case.call(radial_embedding)(case.vectors)
    directions = case.vectors / case.distance[:, None]
    assert_close(x, edge_tensors(directions, factors, case.graph[0]), 0)
    assert not x[:, -1].any(), "the last atom has no neighbors"


def test_derivatives_of_reference(device):
    check_derivatives(reference.radial_embedding, Case(4, 2, device))


def test_registered_completely(device):
    case = Case(4, 8, device)
    constants = *case.elements, case.table, case.own[0], *case.knots, *case.graph
    vectors = case.vectors.requires_grad_()
    operator = torch.ops.mlff_triton.radial_embedding
    torch.library.opcheck(operator, (vectors, case.species, *constants))


def test_refuses_what_does_not_fit(device):
    check_refusals(radial_embedding, device)
