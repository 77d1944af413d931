"""Linear maps of split rows, compared with products in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.numerics.split import SplitOperand
from mlff_triton.kernels.pairs.reference import split_linear as reference
from mlff_triton.kernels.pairs.split_linear import split_linear, split_rows
from tests.kernels.pairs.cases import assert_no_worse

pytestmark = pytest.mark.usefixtures("described")

SIZES = [(1, 8, 1), (17, 96, 50), (3, 768, 130), (70, 40, 200)]  # rows, channels, results


def spread_out(*shape: int) -> Tensor:
    """Return rows of very different sizes, and one of zeros after the first."""
    x = torch.randn(shape) * 10.0 ** torch.randint(-12, 12, shape[:-1])[..., None]
    x[..., 1:2, :] = 0
    return x


def moved(given: SplitOperand, device: str) -> SplitOperand:
    return SplitOperand(*(x.to(device) for x in given))


@pytest.mark.parametrize("shape", [(1, 1), (2, 3, 17), (70, 768)], ids=str)
def test_rows_are_split(shape, device):
    x = spread_out(*shape)
    found = split_rows(x.to(device))
    own = SplitOperand.of(x)
    for a, b in zip(found, own, strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
    error = (SplitOperand(*(part.cpu() for part in found)).joined() - x).abs()
    assert (error <= 2.0**-22 * x.abs().amax(-1, keepdim=True)).all()
    assert torch.equal(found.high.cpu(), own.high)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_products_are_as_exact_as_in_float32(size, biased, device):
    n_rows, n_in, n_out = size
    x, weight = spread_out(n_rows, n_in), torch.randn(n_out, n_in)
    bias = torch.randn(n_out) if biased else None
    given = None if bias is None else bias.to(device)
    found = split_linear(split_rows(x.to(device)), moved(SplitOperand.of(weight), device), given)
    own = torch.nn.functional.linear(x, weight, bias)
    exact = torch.nn.functional.linear(
        x.double(), weight.double(), None if bias is None else bias.double()
    )
    size = (x.double().abs() @ weight.double().abs().T).clamp(min=1e-30)
    assert found.dtype is torch.float32
    assert_no_worse(found.cpu() / size, exact / size, own / size, torch.float32)


def test_the_reference_agrees():
    x, weight = spread_out(5, 16), torch.randn(7, 16)
    found = reference.split_linear(reference.split_rows(x), SplitOperand.of(weight))
    exact = x.double() @ weight.double().T
    torch.testing.assert_close(found, exact, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:invalid value")
def test_rows_that_are_not_numbers_are_seen(device):
    x = torch.randn(3, 16, device=device)
    x[1, 5], x[2, 5] = torch.nan, torch.inf
    found = split_linear(split_rows(x), moved(SplitOperand.of(torch.randn(4, 16)), device))
    assert found.isfinite().all(1).tolist() == [True, False, False]


def test_bad_arguments_are_refused(device):
    rows = split_rows(torch.randn(3, 16, device=device))
    weight = split_rows(torch.randn(4, 16, device=device))
    with pytest.raises(InputError, match="use float32"):
        split_rows(rows.high)
    with pytest.raises(InputError, match="high has the shape"):
        split_linear(split_rows(torch.randn(3, 24, device=device)), weight)
    with pytest.raises(InputError, match="halves with float32 units"):
        split_linear(rows._replace(unit=rows.unit.double()), weight)
    narrow = split_rows(torch.randn(3, 12, device=device))
    with pytest.raises(InputError, match="multiple of 8"):
        split_linear(narrow, narrow)
    assert not split_linear(split_rows(torch.randn(0, 16, device=device)), weight).numel()
