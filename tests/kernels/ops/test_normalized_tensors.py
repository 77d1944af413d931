from __future__ import annotations

import pytest
import torch

from mlff_triton.errors import InputError
from mlff_triton.kernels.ops.normalized_tensors import normalized_tensors
from mlff_triton.kernels.ops.reference.normalized_tensors import normalized_tensors as reference
from tests.support.operators import SIZES, assert_matches


@pytest.mark.parametrize(("n_atoms", "channels"), SIZES)
def test_matches_reference(n_atoms, channels, dtype, device):
    x = torch.randn(9, n_atoms, channels, dtype=dtype, device=device)
    assert_matches(normalized_tensors, reference, x)


def test_transposed_input(device):
    x = torch.randn(5, 9, 8, device=device).transpose(0, 1)
    assert_matches(normalized_tensors, reference, x)


def test_derivatives_of_reference():
    x = torch.randn(9, 2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(reference, (x,))
    assert torch.autograd.gradgradcheck(reference, (x,))


def test_registered_completely(device):
    x = torch.randn(9, 4, 8, device=device, requires_grad=True)
    operators = torch.ops.mlff_triton
    torch.library.opcheck(operators.normalized_tensors.default, (x,))
    torch.library.opcheck(operators.normalized_tensors_backward.default, (x.detach(), x))


@pytest.mark.parametrize("shape", [(8, 2, 4), (9, 4), (2, 3, 3, 4)])
def test_refuses_other_shapes(shape, device):
    with pytest.raises(InputError, match="x has the shape"):
        normalized_tensors(torch.zeros(shape, device=device))


def test_refuses_half_precision(device):
    with pytest.raises(InputError, match=r"x is torch.float16: use float32 or float64"):
        normalized_tensors(torch.zeros(9, 2, 4, dtype=torch.float16, device=device))
