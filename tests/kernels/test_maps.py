"""Weights in halves, and what tensor cores make of them: emulated here, measured on a GPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from mlff_triton.kernels import interaction
from mlff_triton.kernels.reference import maps
from mlff_triton.kernels.reference.maps import LOSS, Map, round_to_tf32

Float32 = NDArray[np.float32]


def random_weight(channels: int = 128) -> Tensor:
    return torch.randn(3, channels, channels) / channels**0.5


def shrinkage(actual: Tensor, expected: Tensor) -> float:
    """By which factor results are too small on the whole, less one."""
    expected = expected.double()
    return 1 - float((actual.double() * expected).sum() / expected.square().sum())


def test_halves_are_tf32_numbers_that_add_up():
    weight = random_weight()
    halves = Map.of(weight)
    for half in (halves.high, halves.low):
        assert not (half.view(torch.int32) & 0x1FFF).any()
    total = halves.high.double() + halves.low.double()
    assert (total / weight.double() - 1 - LOSS).abs().max() < 2**-22
    assert shrinkage(total, weight) == pytest.approx(-LOSS, rel=0.02)


def test_double_precision_is_left_alone():
    weight = random_weight().double()
    assert all(torch.equal(part, weight) for part in Map.of(weight)[:3])


@pytest.mark.parametrize(("loss", "expected"), [(LOSS, 0.0), (0.0, LOSS)])
def test_the_loss_is_that_of_rounding_towards_zero(monkeypatch, loss, expected):
    monkeypatch.setattr(maps, "LOSS", loss)
    weight, x = random_weight(64)[0], torch.randn(500, 64)
    halves = Map.of(weight)
    product = torch.zeros(500, 64)
    for begin in range(0, 64, 32):
        product += torch.from_numpy(block_on_tensor_cores(x, halves, slice(begin, begin + 32)))
    found = shrinkage(product, x.double() @ weight.double().T)
    assert found == pytest.approx(expected, abs=1.5e-8)


def block_on_tensor_cores(x: Tensor, halves: Map, inner: slice) -> Float32:
    """Three products as `kernels._tiles.multiply` takes them, eight channels at a time."""
    x_high = round_to_tf32(x)
    x_low = (x - x_high).contiguous().view(torch.int32) & ~0x1FFF  # what tensor cores read of it
    total = np.zeros((len(x), len(halves.weight)), np.float32)
    products = (x_low.view(torch.float32), halves.high), (x_high, halves.low), (x_high, halves.high)
    for left, right in products:
        for begin in range(inner.start, inner.stop, 8):
            eight = slice(begin, begin + 8)
            exact = left[:, eight].double() @ right[:, eight].double().T
            total = towards_zero(total.astype(np.float64) + exact.numpy())
    return total


def towards_zero(values: NDArray[np.float64]) -> Float32:
    rounded = values.astype(np.float32)
    inward = np.nextafter(rounded, np.float32(0))
    return np.where(np.abs(rounded.astype(np.float64)) > np.abs(values), inward, rounded)


@pytest.mark.gpu
@pytest.mark.parametrize("n_atoms", [128, 4096])
def test_products_on_tensor_cores_are_not_too_small(n_atoms):
    if not torch.cuda.is_available():
        pytest.skip("tensor cores need a GPU")
    weight, x = random_weight().cuda(), torch.randn(9, n_atoms, 128, device="cuda")
    found = interaction.linear(x, Map.of(weight))
    parts = [0, 1, 1, 1, 2, 2, 2, 2, 2]
    expected = x.double() @ weight.double()[parts].mT
    assert abs(shrinkage(found, expected)) < 4e-8
    assert float((found - expected).norm() / expected.norm()) < 2e-7
