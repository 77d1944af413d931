from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from mlff_triton.errors import InputError
from mlff_triton.kernels.ops import layer_norm as module
from mlff_triton.kernels.ops.layer_norm import (
    add_layer_norm,
    layer_norm,
)
from mlff_triton.kernels.ops.reference import layer_norm as reference
from mlff_triton.testing import assert_close
from tests.support.operators import assert_matches

SHAPES = [(1, 8), (63, 33), (500, 8), (3, 320), (2, 5120), (2, 3, 128)]


def random_inputs(
    shape: tuple[int, ...], device: str, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return random rows, a residual, weight and bias."""
    generator = torch.Generator().manual_seed(sum(shape))
    shapes = (shape, shape, shape[-1:], shape[-1:])
    x, residual, weight, bias = (torch.randn(s, generator=generator) for s in shapes)
    return tuple(t.to(device, dtype) for t in (x + 3, residual, weight, bias))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_matches_the_reference(shape, device, dtype):
    x, _, weight, bias = random_inputs(shape, device, dtype)
    assert_matches(layer_norm, reference.layer_norm, x, weight, bias)


@pytest.mark.parametrize("shape", [(63, 33), (2, 3, 128)], ids=str)
def test_with_a_residual(shape, device, dtype):
    inputs = random_inputs(shape, device, dtype)
    assert_matches(add_layer_norm, reference.add_layer_norm, *inputs)


def test_without_bias_and_with_another_eps(device):
    x, _, weight, _ = random_inputs((7, 40), device)
    expected = functional.layer_norm(x, (40,), weight, None, 0.3)
    assert_close(layer_norm(x, weight, eps=0.3), expected, 0)


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_half_precision(half, device):
    inputs = [t.requires_grad_() for t in random_inputs((9, 100), device, half)]
    exact = [t.detach().double().requires_grad_() for t in inputs]
    y, total = add_layer_norm(*inputs)
    y_exact, _ = reference.add_layer_norm(*exact)
    assert y.dtype is total.dtype is half
    unit = torch.finfo(half).eps
    for actual, expected in zip(
        (y, *torch.autograd.grad(y.sum(), inputs)),
        (y_exact, *torch.autograd.grad(y_exact.sum(), exact)),
        strict=True,
    ):
        assert (actual - expected).abs().max() < 4 * unit * expected.abs().max()


def test_more_rows_than_programs(monkeypatch, device):
    monkeypatch.setattr(module, "_MAX_BACKWARD_PROGRAMS", 3)
    x, grad, weight, bias = (t.requires_grad_() for t in random_inputs((75, 100), device))
    found = torch.autograd.grad(layer_norm(x, weight, bias), (x, weight, bias), grad)
    y = reference.layer_norm(x, weight, bias)
    exact = torch.autograd.grad(y, (x, weight, bias), grad)
    for actual, expected in zip(found, exact, strict=True):
        assert_close(actual, expected, 1)


def test_no_rows(device):
    x, _, weight, bias = (t.requires_grad_() for t in random_inputs((0, 8), device))
    y = layer_norm(x, weight, bias)
    y.sum().backward()
    assert y.shape == x.grad.shape == (0, 8)
    assert not weight.grad.any()
    assert not bias.grad.any()


def test_a_row_of_equal_numbers_and_a_strided_one(device):
    _, _, weight, bias = random_inputs((4, 8), device, torch.float32)
    constant = torch.full((4, 8), 1e4, device=device)
    assert torch.equal(layer_norm(constant, weight, bias), bias.expand(4, 8))
    x = torch.randn(8, 4, device=device).T
    assert torch.equal(layer_norm(x, weight, bias), layer_norm(x.contiguous(), weight, bias))


def test_derivatives_of_the_reference():
    inputs = tuple(t.requires_grad_() for t in random_inputs((2, 4), "cpu"))
    assert torch.autograd.gradcheck(reference.add_layer_norm, inputs)
    assert torch.autograd.gradgradcheck(reference.add_layer_norm, inputs)


def test_registered_completely(device):
    x, residual, weight, bias = (t.requires_grad_() for t in random_inputs((3, 8), device))
    operator = torch.ops.mlff_triton.layer_norm.default
    torch.library.opcheck(operator, (x, None, weight, bias, 1e-5))
    torch.library.opcheck(operator, (x, residual, weight, bias, 1e-5))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.ones(2, 0)}, "use rows of 1 to 16384 channels"),
        ({"x": torch.ones(2, 20000)}, "use rows of 1 to 16384 channels"),
        ({"x": torch.ones(2, 5)}, r"weight has the shape \[4\] instead of \[5\]"),
        ({"bias": torch.ones(5)}, r"bias has the shape \[5\] instead of \[4\]"),
        ({"weight": torch.ones(4).half()}, "weight is torch.float16.* the same for all"),
        ({"x": torch.ones(2, 4).long()}, "x is torch.int64"),
    ],
)
def test_refuses_what_does_not_fit(change, message, device):
    inputs = {"x": torch.ones(2, 4), "weight": torch.ones(4), "bias": torch.ones(4)}
    with pytest.raises(InputError, match=message):
        layer_norm(**{name: t.to(device) for name, t in (inputs | change).items()})


def test_refuses_another_residual(device):
    x, _, weight, bias = random_inputs((2, 4), device)
    with pytest.raises(InputError, match=r"residual has the shape \[1, 4\] instead of \[2, 4\]"):
        add_layer_norm(x, x[:1], weight, bias)
