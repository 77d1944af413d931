"""Products of planes of halves, compared with float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mlff_triton.kernels.pairs.plane_products import plane_products
from mlff_triton.testing import assert_within

pytestmark = pytest.mark.usefixtures("described")


def halves(x: Tensor) -> Tensor:
    """Return the high and the low halves of float32 values."""
    high = x.half()
    return torch.stack([high, ((x - high.float()) * 2048).half()])


@pytest.mark.parametrize("turned", [False, True], ids=["outgoing", "incoming"])
@pytest.mark.parametrize("scale", [1.0, 1e-4, 1e3])
@pytest.mark.parametrize("size", [(1, 8), (3, 72), (2, 136)], ids=str)
def test_plane_products(size, scale, turned, device):
    """Small and large numbers are as exact as others."""
    planes, n = size
    a, b = scale * torch.randn(2, planes, n, n)
    exact = a.double().mT @ b.double() if turned else a.double() @ b.double().mT
    found = plane_products(halves(a.to(device)), halves(b.to(device)), turned=turned)
    assert found.dtype is torch.float32
    assert_within(found.cpu(), exact, 1e-6)


def test_entries_that_are_not_numbers_are_seen(device):
    a, b = torch.randn(2, 1, 16, 16, device=device)
    a[0, 3, 5] = torch.nan
    found = plane_products(halves(a), halves(b)).isnan()
    assert found[0, 3].all()
    assert found.sum() == 16
