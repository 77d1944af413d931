"""Weights split into halves, and products with them on tensor cores."""

from __future__ import annotations

import pytest
import torch

from mlff_triton.kernels.numerics.rounding import UNMEASURED, loss_of
from mlff_triton.kernels.numerics.split import SplitWeight
from mlff_triton.kernels.tensornet import interaction

CHANNELS = 128


def random_weight() -> torch.Tensor:
    return torch.randn(3, CHANNELS, CHANNELS) / CHANNELS**0.5


def test_halves_are_tf32_numbers_that_add_up():
    weight = random_weight()
    halves = SplitWeight.of(weight)
    for half in (halves.high, halves.low):
        assert not (half.view(torch.int32) & 0x1FFF).any()
    total = halves.high.double() + halves.low.double()
    assert (total / weight.double() - 1).abs().max() < 2**-22


def test_double_precision_is_left_alone():
    weight = random_weight().double()
    assert all(torch.equal(part, weight) for part in SplitWeight.of(weight)[:3])


@pytest.mark.gpu
@pytest.mark.parametrize("n_atoms", [128, 4096])
def test_products_on_tensor_cores_are_as_exact_as_in_float32(n_atoms):
    if not torch.cuda.is_available():
        pytest.skip("tensor cores need a GPU")
    weight, x = random_weight().cuda(), torch.randn(9, n_atoms, CHANNELS, device="cuda")
    of_component = weight[[0, 1, 1, 1, 2, 2, 2, 2, 2]].mT
    expected = x.double() @ of_component.double()
    found, float32 = interaction.linear(x, SplitWeight.of(weight)), x @ of_component
    errors = [float((y - expected).norm() / expected.norm()) for y in (found, float32)]
    assert errors[0] <= errors[1]
    shrunk = 1 - float((found * expected).sum() / (expected * expected).sum())
    assert abs(shrunk) < (2e-7 if loss_of(x) is UNMEASURED else 3e-8)  # 9e-8 if not restored
