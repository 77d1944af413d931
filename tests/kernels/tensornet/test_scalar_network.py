from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from mlff_triton.kernels.common.reference.activations import activate
from mlff_triton.kernels.tensornet import scalar_network as kernels
from mlff_triton.kernels.tensornet.launch_sizes import LinearBlocks
from mlff_triton.kernels.tensornet.reference import scalar_network as reference
from mlff_triton.testing import assert_close
from tests.support.random_inputs import (
    ACTIVATIONS,
    LARGE,
    assert_matches,
    assert_repeats,
    numbers,
    weights,
)

SIZES = [(1, 16), (5, 128), (37, 32), pytest.param(3000, 128, marks=pytest.mark.gpu)]


def forward_inputs(n_atoms: int, channels: int, activation: str = "silu") -> tuple[object, ...]:
    f = channels
    return (
        numbers(n_atoms, f).square(),
        *numbers(2, f),
        weights(2 * f, f),
        numbers(2 * f),
        weights(3 * f, 2 * f),
        numbers(3 * f),
        activation,
    )


def backward_inputs(n_atoms: int, channels: int, activation: str = "silu") -> tuple[object, ...]:
    f = channels
    return (
        numbers(n_atoms, 3, f),
        numbers(n_atoms, f).square(),
        numbers(f),
        weights(f, 2 * f),
        weights(2 * f, 3 * f),
        numbers(n_atoms, 2 * f),
        activation,
    )


def check(operator, n_atoms, channels, device, dtype, activation="silu"):
    functions = operator.scalar_network, reference.scalar_network
    assert_matches(*functions, forward_inputs(n_atoms, channels, activation), device, dtype, 0)
    functions = operator.scalar_network_backward, reference.scalar_network_backward
    assert_matches(*functions, backward_inputs(n_atoms, channels, activation), device, dtype, 1)


@pytest.mark.parametrize(("n_atoms", "channels"), SIZES)
def test_agrees_with_the_reference(n_atoms, channels, operator, device, dtype):
    check(operator, n_atoms, channels, device, dtype)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(activation, operator, device, dtype):
    check(operator, 3, 16, device, dtype, activation)


def test_agrees_however_it_is_launched(device, monkeypatch):
    monkeypatch.setattr(kernels, "row_blocks", lambda _: LinearBlocks(32, 16, 32, 4, 2))
    check(kernels, 37, 32, device, torch.float32)


def test_gives_the_same_bits_again(operator, device):
    n_atoms = LARGE[device == "cuda"]
    assert_repeats(operator.scalar_network, forward_inputs(n_atoms, 32), device, torch.float32)
    inputs = backward_inputs(n_atoms, 32)
    assert_repeats(operator.scalar_network_backward, inputs, device, torch.float32)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_reference_has_the_right_gradients(activation):
    norm, gain, shift, weight1, bias1, weight2, bias2, _ = forward_inputs(4, 8, activation)
    norm.requires_grad_()
    inputs = norm, gain, shift, weight1, bias1, weight2, bias2, activation
    hidden, scales = reference.scalar_network(*inputs)
    expected = functional.layer_norm(norm, (8,), gain, shift) @ weight1.weight.T + bias1
    assert_close(hidden, expected, 0)
    assert_close(scales.flatten(1), activate(expected, activation) @ weight2.weight.T + bias2, 0)

    grad = numbers(4, 3, 8)
    expected = torch.autograd.grad((scales * grad).sum(), norm)[0]
    adjoints = weight1.transposed, weight2.transposed
    found = reference.scalar_network_backward(
        grad, norm.detach(), gain, *adjoints, hidden.detach(), activation
    )
    assert_close(found, expected, 1)
