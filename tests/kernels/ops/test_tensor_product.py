from __future__ import annotations

import pytest
import torch

from mlff_triton.errors import InputError
from mlff_triton.kernels.ops.reference.tensor_product import tensor_product as reference
from mlff_triton.kernels.ops.tensor_product import tensor_product
from mlff_triton.model import irreps
from mlff_triton.testing import assert_close
from tests.support.operators import SIZES, assert_matches

LAYOUTS = {"packed": lambda n, f: (9, n, f), "full": lambda n, f: (n, 3, 3, f)}
VARIANTS = {
    "O(3)": (False, "O(3)", True),
    "O(3), charged": (True, "O(3)", True),
    "O(3), charged, product only": (True, "O(3)", False),
    "SO(3)": (False, "SO(3)", True),
    "SO(3), product only": (False, "SO(3)", False),
}  # charged, group, normalize


def inputs(variant: str, shape: tuple[int, ...], n_atoms: int, **kwargs):
    charged, group, normalize = VARIANTS[variant]
    y, message = torch.randn(2, *shape, **kwargs)
    charge_factor = 1 + 0.1 * torch.arange(n_atoms, **kwargs) if charged else None
    return y, message, charge_factor, group, normalize


def without_charge_gradient(function, charge_factor, group, normalize):
    """Return a function of the two tensors that get gradients."""
    return lambda y, m: function(
        y,
        m,
        None if charge_factor is None else charge_factor.to(y.dtype),
        group=group,
        normalize=normalize,
    )


def assert_product(y, message, *options) -> None:
    assert_matches(
        without_charge_gradient(tensor_product, *options),
        without_charge_gradient(reference, *options),
        y,
        message,
    )


@pytest.mark.parametrize(("n_atoms", "channels"), SIZES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_matches_reference(layout, n_atoms, channels, dtype, device):
    shape = LAYOUTS[layout](n_atoms, channels)
    assert_product(*inputs("O(3), charged", shape, n_atoms, dtype=dtype, device=device))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_variants(layout, variant, dtype, device):
    shape = LAYOUTS[layout](7, 12)
    assert_product(*inputs(variant, shape, 7, dtype=dtype, device=device))


@pytest.mark.parametrize("group", ["O(3)", "SO(3)"])
def test_agrees_with_the_model(group, device):
    y, message = torch.randn(2, 9, 5, 8, dtype=torch.float64, device=device)
    a, b = irreps.compose(y), irreps.compose(message)
    swapped = irreps.matmul(b, a) if group == "O(3)" else irreps.matmul(a, b)
    product = irreps.decompose(irreps.matmul(a, b) + swapped)
    expected = product / (irreps.irrep_norms(product).sum(0) + 1)
    assert_close(tensor_product(y, message, group=group), expected, order=0)


def test_isolated_atoms_get_zeros(device):
    y = torch.randn(9, 3, 8, device=device)
    assert torch.equal(tensor_product(y, torch.zeros_like(y)), torch.zeros_like(y))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_derivatives_of_reference(layout, variant):
    y, message, *options = inputs(variant, LAYOUTS[layout](2, 2), 2, dtype=torch.float64)
    leaves = y.requires_grad_(), message.requires_grad_()
    function = without_charge_gradient(reference, *options)
    assert torch.autograd.gradcheck(function, leaves)
    assert torch.autograd.gradgradcheck(function, leaves)


def test_registration(device):
    y, message, *options = inputs("O(3), charged", (9, 4, 8), 4, device=device)
    leaves = y.requires_grad_(), message.requires_grad_()
    torch.library.opcheck(torch.ops.mlff_triton.tensor_product.default, (*leaves, *options))


def test_wrong_inputs(device):
    y = torch.zeros(9, 2, 4, device=device)
    ones = torch.ones(2, device=device)
    with pytest.raises(InputError, match="group='U' is unknown: use one of O"):
        tensor_product(y, y, group="U")
    with pytest.raises(InputError, match=r"message has the shape .* instead of \[9, 2, 4\]"):
        tensor_product(y, y[:, :1])
    with pytest.raises(InputError, match=r"charge_factor has the shape .* instead of \[2\]"):
        tensor_product(y, y, ones[:1])
    with pytest.raises(InputError, match=r"charge_factor belongs to O\(3\)"):
        tensor_product(y, y, ones, group="SO(3)")
    with pytest.raises(InputError, match="charge_factor gets no gradient"):
        tensor_product(y, y, ones.requires_grad_())
    with pytest.raises(InputError, match=r"message is torch.float64: use float32 or float64"):
        tensor_product(y, y.double())
