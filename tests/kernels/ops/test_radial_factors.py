from __future__ import annotations

import pytest
import torch

from mlff_triton.errors import InputError
from mlff_triton.kernels.ops.radial_factors import radial_factors
from mlff_triton.kernels.ops.reference import radial_factors as reference
from tests.support.radial_cases import Case, check, check_derivatives


@pytest.mark.parametrize(("n_atoms", "channels"), [(0, 8), (1, 8), (6, 16), (63, 8), (5, 33)])
def test_agrees_with_the_reference_to_second_order(n_atoms, channels, device, dtype):
    check(radial_factors, reference.radial_factors, Case(n_atoms, channels, device), dtype)


def test_several_blocks_of_channels(device):
    check(radial_factors, reference.radial_factors, Case(5, 192, device), torch.float32)


def test_derivatives_of_reference(device):
    check_derivatives(reference.radial_factors, Case(4, 2, device))


def test_registered_completely(device):
    case = Case(4, 8, device)
    inputs = case.distance.requires_grad_(), case.table, *case.knots
    torch.library.opcheck(torch.ops.mlff_triton.radial_factors, inputs)


def test_refuses_what_does_not_fit(device):
    case = Case(4, 8, device)
    distance, table, knots = case.distance, case.table, case.knots
    with pytest.raises(InputError, match="table gets no gradient: detach it"):
        radial_factors(distance, table.clone().requires_grad_(), knots)
    with pytest.raises(InputError, match=r"table has the shape .* instead of \[7, 3, 3, F\]"):
        radial_factors(distance, table[1:], knots)
    with pytest.raises(InputError, match="use float32 or float64, the same for all"):
        radial_factors(distance.float(), table, knots)
    with pytest.raises(InputError, match=r"distance has the shape .* instead of \[E\]"):
        radial_factors(distance[:, None], table, knots)
    knots = knots._replace(positions=knots.positions.float())
    with pytest.raises(InputError, match=r"knots\.positions is torch\.float32: use float64"):
        radial_factors(distance, table, knots)
