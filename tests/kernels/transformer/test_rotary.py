from __future__ import annotations

import pytest
import torch

from mlff_triton.kernels.transformer.reference import rotary as reference
from mlff_triton.kernels.transformer.rotary import rotary_
from tests.support.token_cases import (
    DTYPES,
    assert_rows,
    doubled,
    live_count,
    random_rotary,
    random_rows,
    rotary_on,
)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dim", [16, 24, 64])
@pytest.mark.parametrize(("n_rows", "live"), [(1, 1), (63, 63), (130, 77)])
def test_matches_the_reference(n_rows, live, dim, dtype, device):
    heads = 3
    x = random_rows(n_rows, 3 * heads * dim, dtype, live)
    rotary = random_rotary(n_rows, 2 * heads * dim, dim, dtype)
    exact = reference.rotary(x.double(), *doubled(rotary))
    found = rotary_(x.to(device), rotary_on(device, rotary), live_count(live, device))
    assert_rows(found, exact, dtype, live)


@pytest.mark.parametrize("columns", [0, 24, 72])
def test_other_columns_and_rows_stay_to_the_bit(columns, device, dtype):
    x = torch.randn(20, 72, dtype=dtype, device=device)
    rotary = random_rotary(20, columns, 24, dtype)
    found = rotary_(x.clone(), rotary_on(device, rotary), live_count(7, device))
    assert torch.equal(found[7:], x[7:])
    assert torch.equal(found[:, columns:], x[:, columns:])


def test_in_place_and_int64_positions(device, dtype):
    x = torch.randn(9, 32, dtype=dtype, device=device)
    rotary = random_rotary(9, 32, 16, dtype)
    exact = reference.rotary(x.cpu().double(), *doubled(rotary))
    rotary = rotary._replace(position=rotary.position.long())
    assert rotary_(x, rotary_on(device, rotary), live_count(9, device)) is x
    assert_rows(x, exact, dtype)


def test_scores_depend_on_distances_alone(device):
    """Shifting the positions of query and key together changes no score."""
    q, k = torch.randn(2, 1, 64, dtype=torch.float64)
    scores = []
    for shift in (0, 5, 30):
        rotary = random_rotary(2, 64, 64, torch.float64)
        rotary = rotary._replace(position=torch.tensor([3, 11]) + shift)
        x = torch.cat([q, k]).to(device)
        x = rotary_(x, rotary_on(device, rotary), live_count(2, device))
        scores.append(x[0] @ x[1])
    assert torch.stack(scores).std() < 1e-13


@pytest.mark.parametrize(("n_rows", "live"), [(0, 0), (3, 0)])
def test_no_rows(n_rows, live, device):
    x = random_rows(n_rows, 32, torch.float32, live).to(device)
    rotary = rotary_on(device, random_rotary(n_rows, 32, 16, torch.float32))
    assert rotary_(x, rotary, live_count(live, device)).isnan().all()


def test_derivatives_of_the_reference():
    x = torch.randn(3, 12, dtype=torch.float64, requires_grad=True)
    rotary = random_rotary(3, 8, 4, torch.float64)
    assert torch.autograd.gradcheck(lambda x: reference.rotary(x, *rotary), (x,))
