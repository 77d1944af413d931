"""Loops over rows against PyTorch in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from mlff_triton.kernels.common.cpu.activations import activate_rows, activate_rows_backward
from mlff_triton.kernels.common.cpu.compilation import loop
from mlff_triton.kernels.common.cpu.exponential import exponential
from mlff_triton.kernels.common.cpu.linear import map_rows
from mlff_triton.kernels.common.cpu.rows import EPS, normalize_rows, normalize_rows_backward
from mlff_triton.kernels.common.cpu.vectors import lanes_of, load_vector, store_vector
from mlff_triton.kernels.common.reference.activations import activate, activate_derivative
from mlff_triton.kernels.numerics.split import SplitWeight
from tests.support.random_inputs import ACTIVATIONS

SHAPES = [(0, 3), (1, 1), (7, 12), (9, 64), (300, 20)]


@pytest.fixture(params=[np.float32, np.float64])
def precision(request):
    return request.param


@pytest.fixture
def tolerance(precision):
    """Return a few units in the last place."""
    return 4 * np.finfo(precision).eps


@loop
def _exponentials(x, lanes, out, first, last):
    for i in range(first, last):
        for f in range(0, x.shape[1], len(lanes)):
            store_vector(out, (i, f), exponential(load_vector(x, (i, f), lanes)))


def exponentials(x, lanes):
    out = np.full_like(x, np.nan)
    _exponentials(x, lanes, out, 0, len(x))
    return out


@pytest.mark.parametrize("channels", [1, 32])
def test_exponential_in_the_whole_range(precision, tolerance, channels):
    """Also next to half-integer multiples of ln 2, where the argument is reduced differently."""
    largest = 87 if precision == np.float32 else 708
    halves = (np.arange(-100, 100) + 0.5) * np.log(2)
    points = [np.linspace(-largest, largest, 20001), halves, np.nextafter(halves, 0), [0, -0.0]]
    x = np.concatenate(points)
    x = x[abs(x) <= largest][: len(x) // 64 * 64].astype(precision).reshape(-1, 32)
    lanes = lanes_of(channels, x.itemsize)
    expected = np.exp(x.astype(np.longdouble))
    np.testing.assert_allclose(exponentials(x, lanes), expected, rtol=tolerance)


def test_exponential_of_extremes(precision):
    x = np.array([[np.nan, np.inf, -np.inf, 1e30, -1e30, 0, -0.0, 1e-30]], precision)
    found = exponentials(x, lanes_of(8, x.itemsize))[0]
    assert np.isnan(found[0])
    assert (found[[1, 3]] > 1e37).all()
    assert (found[[2, 4]] < 1e-37).all()
    assert np.isfinite(found[1:]).all()
    assert (found[5:] == 1).all()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(shape, activation, precision, tolerance):
    generator = np.random.default_rng(0)
    x, grad = 5 * generator.standard_normal((2, *shape)).astype(precision)
    wide = torch.from_numpy(x).double()
    found = activate_rows(x, activation)
    assert found.dtype == precision
    np.testing.assert_allclose(found, activate(wide, activation), rtol=0, atol=20 * tolerance)
    slope = activate_derivative(wide, activation).numpy()
    expected = grad * slope
    found = activate_rows_backward(grad, x, activation)
    assert found is grad
    np.testing.assert_allclose(found, expected, rtol=0, atol=200 * tolerance)


def test_silu_of_extremes(precision):
    """The saturated ends have no NaN, and a NaN stays one."""
    x = np.array([[np.nan, 1e30, -1e30, 100, -100, 0, 3, -3]], precision)
    value, slope = activate_rows(x, "silu")[0], activate_rows_backward(np.ones_like(x), x, "silu")
    expected = [np.nan, 1e30, 0, 100, 0, 0, 2.8577224, -0.14227763]
    np.testing.assert_allclose(
        value[[0, 1, 3, 4, 5, 6, 7]], np.delete(expected, 2).astype(precision), atol=1e-6
    )
    np.testing.assert_allclose(slope[0, 3:5], [1, 0], atol=1e-4)
    assert np.isnan(slope[0, 0])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("offset", [0, 100])
def test_layer_norm(shape, offset, precision, tolerance):
    """Also of rows whose mean is far larger than their deviation from it."""
    generator = np.random.default_rng(0)
    x, grad = generator.standard_normal((2, *shape)).astype(precision)
    x += offset
    gain, shift = torch.from_numpy(generator.standard_normal((2, shape[1])).astype(precision))
    wide = torch.from_numpy(x).double().requires_grad_()
    expected = functional.layer_norm(wide, shape[1:], gain.double(), shift.double(), EPS)
    size = 100 * (1 + offset) * tolerance * (300 if shape[1] == 1 else 1)
    found = normalize_rows(x, gain, shift)
    np.testing.assert_allclose(found, expected.detach(), rtol=0, atol=size)
    (expected,) = torch.autograd.grad(expected, wide, torch.from_numpy(grad).double())
    found = normalize_rows_backward(grad, x, gain)
    assert found is grad
    np.testing.assert_allclose(found, expected, rtol=0, atol=size)


@pytest.mark.parametrize("n_rows", [0, 1, 7, 8, 9, 30])
@pytest.mark.parametrize("widths", [(5, 1), (1, 6), (24, 64)])
def test_linear_maps(n_rows, widths, precision, tolerance):
    generator = np.random.default_rng(0)
    x = generator.standard_normal((n_rows, widths[0])).astype(precision)
    weight = torch.from_numpy(generator.standard_normal(widths[::-1]).astype(precision))
    bias = torch.from_numpy(generator.standard_normal(widths[1]).astype(precision))
    given = SplitWeight.of(weight)
    product = x.astype(np.float64) @ weight.double().numpy().T
    np.testing.assert_allclose(map_rows(x, given), product, rtol=0, atol=20 * tolerance)
    found = map_rows(x, given, bias)
    np.testing.assert_allclose(found, product + bias.double().numpy(), rtol=0, atol=20 * tolerance)


def test_rounding_errors_of_long_sums_are_small():
    """Sums of positive terms one after another would lose four bits."""
    x = np.random.default_rng(0).uniform(0.5, 1.5, (16, 4096)).astype(np.float32)
    weight = torch.from_numpy(x[::-1].copy())
    exact = x.astype(np.float64) @ weight.double().numpy().T
    found = map_rows(x, SplitWeight.of(weight))
    assert np.abs(found / exact - 1).max() < 5 * np.finfo(np.float32).eps
