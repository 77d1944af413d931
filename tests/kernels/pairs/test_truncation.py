"""Means of the errors of sums on tensor cores, which truncate."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mlff_triton.kernels.numerics.rounding import UNMEASURED, loss_of
from mlff_triton.kernels.numerics.split import split_weight
from mlff_triton.kernels.pairs.pair_attention import pair_attention
from mlff_triton.kernels.pairs.plane_products import plane_products
from mlff_triton.kernels.pairs.projections import Projection, project_rows
from mlff_triton.kernels.pairs.split_linear import split_linear, split_rows
from mlff_triton.kernels.pairs.window_attention import window_attention

pytestmark = pytest.mark.gpu


LARGEST = 2.5e-8
"""Largest fraction that sums may lose, or gain, on average; without a correction, it is twice."""


@pytest.fixture(autouse=True)
def _measured():
    if loss_of(torch.empty(0, device="cuda")) is UNMEASURED:
        pytest.skip("rounding on the tensor cores of this GPU is unmeasured")


def mean_fraction(found: Tensor, exact: Tensor) -> float:
    """Return the fraction by which results are too large on average."""
    exact = exact.to(found.device)
    return float(((found.double() - exact) * exact).sum() / exact.square().sum())


@pytest.mark.parametrize("channels", [128, 768])
def test_split_maps(channels):
    x, weight = torch.randn(4096, channels).cuda(), torch.randn(512, channels).cuda()
    found = split_linear(split_rows(x), split_rows(weight))
    assert abs(mean_fraction(found, x.double() @ weight.double().T)) < LARGEST


@pytest.mark.parametrize("channels", [32, 64, 128, 256])
def test_projections(channels):
    z, weight = torch.randn(1, 96, 96, channels).cuda(), torch.randn(128, channels).cuda()
    found = z.new_empty(1, 96, 96, 1, 128)
    norm = z.new_ones(channels), z.new_zeros(channels), 1e-5
    project_rows(z, norm, [Projection(weight, found)])
    rows = torch.nn.functional.layer_norm(z.double(), (channels,))
    assert abs(mean_fraction(found[..., 0, :], rows @ weight.double().T)) < LARGEST


def test_planes():
    x = torch.randn(2, 16, 256, 256).cuda()
    a, b = (split_weight(each, "shifted_halves").movedim(1, 0).contiguous() for each in x)
    exact = x[0].double() @ x[1].double().mT
    assert abs(mean_fraction(plane_products(a, b), exact)) < LARGEST


@pytest.mark.parametrize(("length", "dim"), [(64, 32), (256, 48), (600, 32)])
def test_attention(length, dim):
    q, k, v = torch.randn(3, 1, 2, length, 16, dim).cuda()
    bias = torch.randn(1, 16, length, length).cuda()
    wide = [x.double().transpose(2, 3) for x in (q, k, v)]
    weights = (wide[0] @ wide[1].mT * dim**-0.5 + bias.double()[:, None]).softmax(-1)
    found = pair_attention(q, k, v, bias).transpose(2, 3)
    assert abs(mean_fraction(found, weights @ wide[2])) < LARGEST


def test_windows():
    """Of 128 keys, all exist, so that windows can be compared with attention of all tokens."""
    q, k, v = torch.randn(3, 64, 4, 128, 4, 32).cuda()
    bias = torch.randn(64, 1, 4, 128, 128).cuda()
    wide = [x.double().transpose(2, 3) for x in (q, k, v)]
    weights = (wide[0] @ wide[1].mT * 32**-0.5 + bias.double()).softmax(-1)
    found = window_attention(q, k, v, bias).transpose(2, 3)
    assert abs(mean_fraction(found, weights @ wide[2])) < LARGEST
