from __future__ import annotations

import pytest
import torch

from mlff_triton.errors import InputError
from mlff_triton.kernels.ops import decomposition
from mlff_triton.kernels.ops.reference import decomposition as reference
from mlff_triton.model import irreps
from mlff_triton.testing import assert_close
from tests.support.operators import SIZES, assert_matches

OPERATORS = {
    "decompose": lambda n, f: (n, 3, 3, f),
    "compose": lambda n, f: (9, n, f),
    "decompose_tensor": lambda n, f: (n, 3, 3, f),
}  # shapes of their inputs


@pytest.mark.parametrize(("n_atoms", "channels"), SIZES)
@pytest.mark.parametrize("name", OPERATORS)
def test_matches_reference(name, n_atoms, channels, dtype, device):
    x = torch.randn(OPERATORS[name](n_atoms, channels), dtype=dtype, device=device)
    assert_matches(getattr(decomposition, name), getattr(reference, name), x)


def test_agrees_with_the_model(device):
    x = torch.randn(9, 5, 8, dtype=torch.float64, device=device)
    assert_close(decomposition.compose(x), irreps.compose(x).permute(2, 0, 1, 3), order=0)
    t = torch.randn(5, 3, 3, 8, dtype=torch.float64, device=device)
    assert_close(decomposition.decompose(t), irreps.decompose(t.permute(1, 2, 0, 3)), order=0)


def test_parts_add_up(device):
    t = torch.randn(5, 3, 3, 8, dtype=torch.float64, device=device)
    assert_close(sum(decomposition.decompose_tensor(t)), t, order=0)


def test_transposed_input(device):
    t = torch.randn(5, 3, 3, 8, device=device).transpose(1, 2)
    assert_matches(decomposition.decompose_tensor, reference.decompose_tensor, t)


@pytest.mark.parametrize("name", OPERATORS)
def test_derivatives_of_reference(name):
    x = torch.randn(OPERATORS[name](2, 3), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(getattr(reference, name), (x,))
    assert torch.autograd.gradgradcheck(getattr(reference, name), (x,))


@pytest.mark.parametrize("name", OPERATORS)
def test_derivatives_by_finite_differences(name, device):
    """Second derivatives go through the adjoint kernels, not through the reference."""
    x = torch.randn(OPERATORS[name](2, 3), dtype=torch.float64, device=device, requires_grad=True)
    assert torch.autograd.gradcheck(getattr(decomposition, name), (x,), fast_mode=True)
    assert torch.autograd.gradgradcheck(getattr(decomposition, name), (x,), fast_mode=True)


def test_registration(device):
    t = torch.randn(5, 3, 3, 8, device=device, requires_grad=True)
    x = torch.randn(9, 5, 8, device=device, requires_grad=True)
    operators = torch.ops.mlff_triton
    torch.library.opcheck(operators.pack.default, (t, False))
    torch.library.opcheck(operators.unpack.default, (x, True))
    torch.library.opcheck(operators.split.default, (t,))
    torch.library.opcheck(operators.join.default, (t, t, t))


@pytest.mark.parametrize("name", OPERATORS)
def test_wrong_inputs(name, device):
    right = OPERATORS[name](2, 4)
    with pytest.raises(InputError, match=r"has the shape"):
        getattr(decomposition, name)(torch.zeros(2, 9, 4, device=device))
    with pytest.raises(InputError, match=r"is torch.int64: use float32 or float64"):
        getattr(decomposition, name)(torch.zeros(right, dtype=torch.int64, device=device))
