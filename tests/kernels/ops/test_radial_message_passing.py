from __future__ import annotations

import pytest
import torch

from mlff_triton.kernels.ops.message_passing import message_passing
from mlff_triton.kernels.ops.radial_factors import radial_factors
from mlff_triton.kernels.ops.radial_message_passing import radial_message_passing
from mlff_triton.kernels.ops.reference import radial_message_passing as reference
from mlff_triton.testing import assert_close
from tests.support.radial_cases import Case, check, check_derivatives, check_refusals


@pytest.mark.parametrize(("n_atoms", "channels"), [(0, 8), (1, 8), (6, 16)])
def test_agrees_with_the_reference_to_second_order(n_atoms, channels, device, dtype):
    case = Case(n_atoms, channels, device)
    check(radial_message_passing, reference.radial_message_passing, case, dtype)


def test_more_atoms_and_channels(device):
    case = Case(33, 64, device)
    found = case.call(radial_message_passing)(case.y.float(), case.distance.float())
    exact = case.call(reference.radial_message_passing)(case.y, case.distance)
    assert_close(found, exact, 0, torch.float32)


def test_equals_a_look_up_and_a_sum(device):
    case = Case(6, 16, device)
    case.own = torch.zeros_like(case.own)
    factors = radial_factors(case.distance, case.table, case.knots)
    message = case.call(radial_message_passing)(case.y, case.distance)
    assert_close(message, message_passing(case.y, factors, *case.graph), 0)


def test_derivatives_of_reference(device):
    check_derivatives(reference.radial_message_passing, Case(4, 2, device))


def test_registered_completely(device):
    case = Case(4, 8, device)
    distance, y = case.distance.requires_grad_(), case.y.requires_grad_()
    constants = case.table, case.own, *case.knots, *case.graph
    operator = torch.ops.mlff_triton.radial_message_passing
    torch.library.opcheck(operator, (y, distance, *constants))


def test_refuses_what_does_not_fit(device):
    check_refusals(radial_message_passing, device)
