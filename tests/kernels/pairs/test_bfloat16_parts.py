"""Values as sums of parts in bfloat16, and their products."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common.bfloat16_parts import multiply_parts, split_parts

SIDE = 16


@triton.jit
def _split_kernel(x_ptr, out_ptr, count: tl.constexpr, size: tl.constexpr):
    place = tl.arange(0, size)
    parts = split_parts(tl.load(x_ptr + place), count)
    for k in tl.static_range(count):
        tl.store(out_ptr + k * size + place, parts[k])


@triton.jit
def _multiply_kernel(a_ptr, b_ptr, out_ptr, count: tl.constexpr, side: tl.constexpr):
    place = tl.arange(0, side)[:, None] * side + tl.arange(0, side)[None, :]
    a, b = split_parts(tl.load(a_ptr + place), count), split_parts(tl.load(b_ptr + place), count)
    tl.store(out_ptr + place, multiply_parts(a, b))


def split(x: Tensor, parts: int) -> Tensor:
    out = torch.empty(parts, len(x), dtype=torch.bfloat16, device=x.device)
    _split_kernel[(1,)](x, out, count=parts, size=len(x))
    return out.double().sum(0)


def test_three_parts_hold_all_bits(device):
    x = torch.randn(256) * 10.0 ** torch.randint(-25, 30, (256,))
    x[0] = 0
    assert torch.equal(split(x.to(device), 3).cpu(), x.double())


def test_two_parts_hold_16_bits(device):
    x = torch.randn(256)
    errors = (split(x.to(device), 2).cpu() - x).abs() / x.abs()
    assert 2.0**-22 < errors.max() <= 2.0**-17
    assert abs(((split(x.to(device), 2).cpu() - x) / x).mean()) < 2.0**-20


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_values_that_are_not_finite_are_seen(value, device):
    x = torch.ones(16, device=device)
    x[3] = value
    found = split(x, 3).isfinite()
    assert not found[3]
    assert found.sum() == 15


@pytest.mark.parametrize(("parts", "bound"), [(2, 1e-5), (3, 3e-7)])
def test_products(parts, bound, device):
    a, b = torch.randn(2, SIDE, SIDE)
    out = torch.empty(SIDE, SIDE, device=device)
    _multiply_kernel[(1,)](a.to(device), b.to(device), out, count=parts, side=SIDE)
    exact = a.double() @ b.double()
    error = (out.cpu() - exact).norm() / exact.norm()
    assert error < bound
