from __future__ import annotations

import pytest
import torch

from mlff_triton.errors import InputError
from mlff_triton.kernels.ops.reference.scaled_tensors import scaled_tensors as reference
from mlff_triton.kernels.ops.scaled_tensors import scaled_tensors
from mlff_triton.model import irreps
from mlff_triton.testing import assert_close
from tests.support.operators import SIZES, assert_matches


@pytest.mark.parametrize(("n_atoms", "channels"), SIZES)
def test_matches_reference(n_atoms, channels, dtype, device):
    x = torch.randn(9, n_atoms, channels, dtype=dtype, device=device)
    scales = torch.randn(n_atoms, 3, channels, dtype=dtype, device=device)
    assert_matches(scaled_tensors, reference, x, scales)


def test_agrees_with_the_model(device):
    x, scales = torch.randn(9, 5, 8, device=device), torch.randn(5, 3, 8, device=device)
    assert_close(scaled_tensors(x, scales), irreps.scale(x, scales), 0, torch.float32)


def test_transposed_inputs(device):
    x = torch.randn(5, 9, 8, device=device).transpose(0, 1)
    scales = torch.randn(3, 5, 8, device=device).transpose(0, 1)
    assert_matches(scaled_tensors, reference, x, scales)


def test_derivatives_of_reference():
    x = torch.randn(9, 2, 3, dtype=torch.float64, requires_grad=True)
    scales = torch.randn(2, 3, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(reference, (x, scales))
    assert torch.autograd.gradgradcheck(reference, (x, scales))


def test_registered_completely(device):
    x = torch.randn(9, 4, 8, device=device, requires_grad=True)
    scales = torch.randn(4, 3, 8, device=device, requires_grad=True)
    operators = torch.ops.mlff_triton
    torch.library.opcheck(operators.scaled_tensors.default, (x, scales))
    torch.library.opcheck(operators.scaled_tensors_backward.default, (x.detach(), x, scales))


@pytest.mark.parametrize(
    ("x", "scales", "message"),
    [
        (torch.ones(2, 3, 3, 4), torch.ones(2, 3, 4), r"instead of \[9, N, F\]"),
        (torch.ones(9, 2, 4), torch.ones(3, 2, 4), r"scales has the shape .* of \[2, 3, 4\]"),
        (torch.ones(9, 2, 4), torch.ones(2, 3, 4).double(), "the same for all"),
    ],
)
def test_refuses_what_does_not_fit(x, scales, message, device):
    with pytest.raises(InputError, match=message):
        scaled_tensors(x.to(device), scales.to(device))
