from __future__ import annotations

import pytest
import torch

from mlff_triton.errors import InputError
from mlff_triton.kernels.ops import vector_to_tensor
from mlff_triton.kernels.ops.reference import vector_to_tensor as reference
from mlff_triton.testing import assert_close
from tests.support.operators import SIZES, assert_matches

OPERATORS = ["vector_to_symmetric", "vector_to_skew"]


def inputs(n_edges: int, channels: int | None, **kwargs) -> list[torch.Tensor]:
    vectors = torch.randn(n_edges, 3, **kwargs)
    return [vectors] if channels is None else [vectors, torch.randn(n_edges, channels, **kwargs)]


@pytest.mark.parametrize(("n_edges", "channels"), [*SIZES, (3, 300)])
@pytest.mark.parametrize("name", OPERATORS)
def test_with_factors(name, n_edges, channels, dtype, device):
    tensors = inputs(n_edges, channels, dtype=dtype, device=device)
    assert_matches(getattr(vector_to_tensor, name), getattr(reference, name), *tensors)


@pytest.mark.parametrize("n_edges", [0, 1, 63, 500])
@pytest.mark.parametrize("name", OPERATORS)
def test_without_factors(name, n_edges, dtype, device):
    tensors = inputs(n_edges, None, dtype=dtype, device=device)
    assert_matches(getattr(vector_to_tensor, name), getattr(reference, name), *tensors)


def test_skew_is_the_cross_product(device):
    v, u = torch.randn(2, 5, 3, dtype=torch.float64, device=device)
    product = (vector_to_tensor.vector_to_skew(v) @ u[:, :, None])[:, :, 0]
    assert_close(product, torch.linalg.cross(v, u), order=0)


@pytest.mark.parametrize("name", OPERATORS)
def test_zero_vectors(name, device):
    v = torch.zeros(2, 3, device=device, requires_grad=True)
    out = getattr(vector_to_tensor, name)(v, torch.ones(2, 4, device=device))
    out.sum().backward()
    assert not out.any()
    assert not v.grad.any()


@pytest.mark.parametrize("channels", [None, 4])
@pytest.mark.parametrize("name", OPERATORS)
def test_derivatives_of_reference(name, channels):
    leaves = [x.requires_grad_() for x in inputs(2, channels, dtype=torch.float64)]
    assert torch.autograd.gradcheck(getattr(reference, name), leaves)
    assert torch.autograd.gradgradcheck(getattr(reference, name), leaves)


def test_registration(device):
    v, factors = (x.requires_grad_() for x in inputs(5, 8, device=device))
    operators = torch.ops.mlff_triton
    torch.library.opcheck(operators.vector_to_tensor.default, (v, True))
    torch.library.opcheck(operators.scaled_vector_to_tensor.default, (v, factors, False))


@pytest.mark.parametrize("name", OPERATORS)
def test_wrong_inputs(name, device):
    operator = getattr(vector_to_tensor, name)
    v = torch.zeros(4, 3, device=device)
    with pytest.raises(InputError, match=r"v has the shape \[3, 4\] instead of \[E, 3\]"):
        operator(v.T)
    with pytest.raises(InputError, match=r"factors has the shape \[3, 8\] instead of \[4, F\]"):
        operator(v, torch.zeros(3, 8, device=device))
    with pytest.raises(InputError, match=r"factors is torch.float64: use float32 or float64"):
        operator(v, torch.zeros(4, 8, dtype=torch.float64, device=device))
