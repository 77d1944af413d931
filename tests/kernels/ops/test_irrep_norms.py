from __future__ import annotations

import pytest
import torch

from mlff_triton.errors import InputError
from mlff_triton.kernels.ops.irrep_norms import irrep_norms
from mlff_triton.kernels.ops.reference.decomposition import compose
from mlff_triton.kernels.ops.reference.irrep_norms import irrep_norms as reference
from mlff_triton.model import irreps
from mlff_triton.testing import assert_close
from tests.support.operators import SIZES, assert_matches

LAYOUTS = {"packed": lambda n, f: (9, n, f), "full": lambda n, f: (n, 3, 3, f)}


@pytest.mark.parametrize(("n_atoms", "channels"), SIZES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_matches_reference(layout, n_atoms, channels, dtype, device):
    x = torch.randn(LAYOUTS[layout](n_atoms, channels), dtype=dtype, device=device)
    assert_matches(irrep_norms, reference, x)


def test_both_layouts_agree_with_the_model(device):
    x = torch.randn(9, 5, 8, dtype=torch.float64, device=device)
    expected = irreps.irrep_norms(x).movedim(0, 1).flatten(1)
    assert_close(irrep_norms(x), expected, order=0)
    assert_close(irrep_norms(compose(x)), expected, order=0)


def test_transposed_input(device):
    x = torch.randn(5, 9, 8, device=device).transpose(0, 1)
    assert_matches(irrep_norms, reference, x)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_derivatives_of_reference(layout):
    x = torch.randn(LAYOUTS[layout](2, 3), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(reference, (x,))
    assert torch.autograd.gradgradcheck(reference, (x,))


def test_registration(device):
    x = torch.randn(9, 4, 8, device=device, requires_grad=True)
    torch.library.opcheck(torch.ops.mlff_triton.irrep_norms.default, (x,))


@pytest.mark.parametrize("shape", [(8, 2, 4), (9, 4), (2, 3, 4, 4), (2, 9, 4)])
def test_wrong_shape(shape, device):
    with pytest.raises(InputError, match=r"x has the shape .* use \[9, N, F\] or \[N, 3, 3, F\]"):
        irrep_norms(torch.zeros(shape, device=device))


def test_wrong_dtype(device):
    with pytest.raises(InputError, match=r"x is torch.float16: use float32 or float64"):
        irrep_norms(torch.zeros(9, 2, 4, dtype=torch.float16, device=device))
