from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mlff_triton.kernels.transformer.reference import token_norm as reference
from mlff_triton.kernels.transformer.token_norm import token_moments, token_norm
from tests.support.token_cases import DTYPES, HALVES, assert_rows, live_count, random_rows

SHAPES = [(1, 1, 8), (63, 63, 33), (130, 77, 320), (3, 2, 5120)]  # T, live, C


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("n_rows", "live", "channels"), SHAPES)
@pytest.mark.parametrize("shifted", [False, True])
def test_matches_the_reference(n_rows, live, channels, shifted, dtype, device):
    assert_matches(device, n_rows, live, channels, dtype, dtype if shifted else None)


@pytest.mark.parametrize("half", HALVES, ids=str)
def test_a_shift_may_be_more_exact(half, device):
    assert_matches(device, 20, 13, 100, half, torch.float32)


def assert_matches(
    device: str,
    n_rows: int,
    live: int,
    channels: int,
    dtype: torch.dtype,
    shift_dtype: torch.dtype | None,
) -> None:
    x = random_rows(n_rows, channels, dtype, live)
    weight, bias, shift = torch.randn(3, channels)
    inputs = [x, weight.to(dtype), bias.to(dtype)]
    given: Tensor | None = None
    if shift_dtype is not None:
        given = shift.to(shift_dtype)
    exact = reference.token_norm(
        *(t.double() for t in inputs), 0.01, None if given is None else given.double()
    )
    x, weight, bias = (t.to(device) for t in inputs)
    given = None if given is None else given.to(device)
    found = token_norm(x, weight, bias, 0.01, live_count(live, device), given)
    assert_rows(found, exact, dtype, live)


def test_a_row_of_equal_numbers(device):
    """The number of channels is a power of two, so the mean is exact."""
    weight, bias = torch.randn(2, 32, device=device)
    x = torch.full((4, 32), 1e4, device=device)
    found = token_norm(x, weight, bias, 1e-5, live_count(4, device))
    assert torch.equal(found, bias.expand(4, 32))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("n_rows", "live", "channels"), SHAPES)
def test_moments(n_rows, live, channels, dtype, device):
    x = random_rows(n_rows, channels, dtype, live)
    found = token_moments(x.to(device), live_count(live, device))
    exact = reference.token_moments(x.double())
    assert found.shape == (2, 1, n_rows)
    for sums, expected in zip(found.unbind(), exact.unbind(), strict=True):
        assert_rows(sums.T, expected.T, torch.promote_types(dtype, torch.float32), live)


@pytest.mark.parametrize(("n_rows", "live"), [(0, 0), (3, 0)])
def test_no_rows(n_rows, live, device):
    x = torch.randn(n_rows, 8, device=device)
    assert token_norm(x, x.new_ones(8), x.new_ones(8), 1e-5, live_count(live, device)).isnan().all()
    assert token_moments(x, live_count(live, device)).isnan().all()


def test_derivatives_of_the_reference():
    x, shift, weight, bias = torch.randn(4, 3, 5, dtype=torch.float64)
    inputs = tuple(t.requires_grad_() for t in (x, weight[0], bias[0], shift[0]))

    def norm(x: Tensor, weight: Tensor, bias: Tensor, shift: Tensor) -> Tensor:
        return reference.token_norm(x, weight, bias, 1e-5, shift)

    assert torch.autograd.gradcheck(norm, inputs)
    assert torch.autograd.gradcheck(reference.token_moments, inputs[:1])
