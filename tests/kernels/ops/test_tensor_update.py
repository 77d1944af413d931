from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.ops.reference.tensor_update import tensor_update as reference
from mlff_triton.kernels.ops.tensor_update import tensor_update
from tests.support.operators import SIZES, assert_matches


def factor(x: Tensor) -> Tensor:
    """Return a charge factor per atom."""
    return torch.linspace(0.8, 1.2, x.shape[1], device=x.device, dtype=x.dtype)


@pytest.mark.parametrize(("n_atoms", "channels"), SIZES)
def test_matches_reference(n_atoms, channels, dtype, device):
    x, delta = torch.randn(2, 9, n_atoms, channels, dtype=dtype, device=device).unbind()
    assert_matches(
        lambda *t: tensor_update(*t, factor(t[0])),
        lambda *t: reference(*t, factor(t[0])),
        x,
        delta,
    )


def test_transposed_input(device):
    x, delta = torch.randn(2, 5, 9, 8, device=device).transpose(1, 2).unbind()
    assert torch.equal(
        tensor_update(x, delta, factor(x)),
        tensor_update(x.contiguous(), delta.contiguous(), factor(x)),
    )


def test_derivatives_of_reference():
    x, delta = torch.randn(2, 9, 2, 3, dtype=torch.float64).unbind()
    leaves = x.requires_grad_(), delta.requires_grad_()
    assert torch.autograd.gradcheck(lambda *t: reference(*t, factor(x.detach())), leaves)
    assert torch.autograd.gradgradcheck(lambda *t: reference(*t, factor(x.detach())), leaves)


def test_registered_completely(device):
    x, delta = (torch.randn(9, 4, 8, device=device, requires_grad=True) for _ in range(2))
    operators = torch.ops.mlff_triton
    torch.library.opcheck(operators.tensor_update.default, (x, delta, factor(x.detach())))
    arguments = (x.detach(), delta, factor(x.detach()))
    torch.library.opcheck(operators.tensor_update_backward.default, arguments)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.ones(8, 2, 4)}, r"x has the shape \[8, 2, 4\] instead of \[9, N, F\]"),
        ({"delta": torch.ones(9, 2, 5)}, r"delta has the shape \[9, 2, 5\] instead of \[9, 2, 4\]"),
        ({"charge_factor": torch.ones(3)}, r"charge_factor has the shape \[3\] instead of \[2\]"),
        ({"delta": torch.ones(9, 2, 4).double()}, "the same for all"),
    ],
)
def test_refuses_what_does_not_fit(change, message, device):
    inputs = {
        "x": torch.ones(9, 2, 4),
        "delta": torch.ones(9, 2, 4),
        "charge_factor": torch.ones(2),
    }
    inputs = {name: t.to(device) for name, t in (inputs | change).items()}
    with pytest.raises(InputError, match=message):
        tensor_update(**inputs)
