from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from mlff_triton.kernels.common.reference.activations import activate
from mlff_triton.kernels.tensornet.reference import readout as reference
from mlff_triton.model import irreps
from mlff_triton.model.config import TensorNetConfig
from mlff_triton.model.readout import GatedHead
from mlff_triton.testing import assert_close
from tests.support.random_inputs import (
    ACTIVATIONS,
    LARGE,
    assert_matches,
    assert_repeats,
    charge_factors,
    numbers,
    weights,
)

SIZES = [(1, 16), (5, 128), (37, 32), pytest.param(3000, 128, marks=pytest.mark.gpu)]


def readout_inputs(n_atoms: int, channels: int) -> tuple[Tensor, ...]:
    gain, shift = numbers(2, 3 * channels)
    x, weight = numbers(9, n_atoms, channels), weights(channels, 3 * channels)
    return x, gain, shift, weight, numbers(channels)


def backward_inputs(n_atoms: int, channels: int) -> tuple[Tensor, ...]:
    x, gain, *_ = readout_inputs(n_atoms, channels)
    weight = weights(3 * channels, channels)
    grad, delta = numbers(n_atoms, channels), numbers(*x.shape)
    return grad, x, gain, weight, delta, charge_factors(n_atoms)


def head_inputs(
    n_atoms: int, channels: int, first: str = "silu", activation: str = "silu"
) -> tuple[object, ...]:
    inner = max(16, channels // 2)
    weight, bias = weights(inner, channels), numbers(inner)
    maps = weight, bias, weight.transposed, numbers(inner), numbers(1)
    return numbers(n_atoms, channels), *maps, first, activation


CASES = {
    "readout": (readout_inputs, 0),
    "readout_backward": (backward_inputs, 1),
    "scalar_head": (head_inputs, 1),
}  # inputs, and derivative order of the outputs


@pytest.mark.parametrize(("n_atoms", "channels"), SIZES)
@pytest.mark.parametrize("name", CASES)
def test_agrees_with_the_reference(name, n_atoms, channels, operator, device, dtype):
    inputs, order = CASES[name]
    functions = getattr(operator, name), getattr(reference, name)
    assert_matches(*functions, inputs(n_atoms, channels), device, dtype, order)


@pytest.mark.parametrize("first", ["none", "tanh"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(first, activation, operator, device):
    functions = operator.scalar_head, reference.scalar_head
    assert_matches(*functions, head_inputs(3, 16, first, activation), device, torch.float32, 1)


@pytest.mark.parametrize("name", CASES)
def test_gives_the_same_bits_again(name, operator, device):
    inputs = CASES[name][0](LARGE[device == "cuda"], 32)
    assert_repeats(getattr(operator, name), inputs, device, torch.float32)


def test_reference_has_the_right_gradients():
    x, gain, shift, weight, bias = readout_inputs(4, 8)
    delta, charge_factor, grad = numbers(9, 4, 8), charge_factors(4), numbers(4, 8)
    x.requires_grad_(), delta.requires_grad_()
    full = irreps.compose(delta)
    last = x + delta + charge_factor[:, None] * irreps.decompose(irreps.matmul(full, full))
    hidden = reference.readout(last, gain, shift, weight, bias)
    norms = irreps.irrep_norms(last).movedim(0, 1).flatten(1)
    expected = functional.layer_norm(norms, (24,), gain, shift) @ weight.weight.T + bias
    assert_close(hidden, expected, 0)

    expected = torch.autograd.grad((hidden * grad).sum(), (x, delta))
    found = reference.readout_backward(
        grad, last.detach(), gain, weight.transposed, delta.detach(), charge_factor
    )
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other, 1)


@pytest.mark.parametrize("first", ["none", *ACTIVATIONS])
@pytest.mark.parametrize("activation", ["ssp", "mish"])
def test_reference_differentiates_the_scalar_head(first, activation):
    hidden, weight1, bias1, adjoint1, weight2, bias2, *names = head_inputs(4, 16, first, activation)
    hidden.requires_grad_()
    inner = activate(activate(hidden, first) @ weight1.weight.T + bias1, activation)
    energies = inner @ weight2 + bias2
    grad = torch.autograd.grad(energies.sum(), hidden)[0]
    maps = weight1, bias1, adjoint1, weight2, bias2
    found = reference.scalar_head(hidden.detach(), *maps, *names)
    assert_close(found[0], energies, 0)
    assert_close(found[1], grad, 1)


@pytest.mark.parametrize("first", ["none", "tanh"])
def test_gated_head_is_the_modules(first, operator, device, dtype):
    head = GatedHead(TensorNetConfig(elements=(1,), hidden_channels=16)).double()
    hidden = numbers(5, 16).requires_grad_()
    energies = 3.5 * head(activate(hidden, first))
    grad = torch.autograd.grad(energies.sum(), hidden)[0]

    def maps(linears):
        return [
            (m.weight.detach().T.to(device, dtype), m.bias.detach().to(device, dtype))
            for m in linears
        ]

    found = operator.gated_head(
        hidden.detach().to(device, dtype), maps(head.values), maps(head.gates), 3.5, first
    )
    assert found[0].dtype == dtype
    assert_close(found[0], energies, 0, dtype)
    assert_close(found[1], grad, 1, dtype)
