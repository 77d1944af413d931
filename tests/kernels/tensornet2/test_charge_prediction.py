from __future__ import annotations

import pytest
import torch

from mlff_triton.kernels.common.reference.activations import activate
from mlff_triton.kernels.common.reference.tensors import (
    compose,
    decompose,
    inverse_norm,
    matmul,
    scale_parts,
)
from mlff_triton.kernels.tensornet2.reference import charge_prediction as reference
from mlff_triton.kernels.tensornet2.reference import normalized_product as product_reference
from mlff_triton.kernels.tensornet2.reference.equilibration import equilibrate
from mlff_triton.kernels.types.charge_network import ChargeNetwork
from mlff_triton.testing import assert_close
from tests.kernels.tensornet2.batches import random_batch
from tests.support.random_inputs import LARGE, assert_matches, assert_repeats, numbers
from tests.support.torchmd_net import import_tensornet2

SIZES = [
    # atoms, channels, charges
    (1, 16, 16),
    (5, 128, 16),
    (63, 32, 5),
    (3, 256, 16),
    pytest.param(3000, 128, 16, marks=pytest.mark.gpu),
]


def weights(f: int, n_charges: int) -> list[object]:
    """Return the weights of a network: those of the norm, and of three maps."""
    maps = [numbers(f, 3 * f), numbers(f, f), numbers(2 * n_charges, f)]
    pairs = [[(w / w.shape[1] ** 0.5).float().double(), numbers(len(w))] for w in maps]
    return [[*numbers(2, 3 * f)], *pairs]


def network(parts, activation="silu") -> ChargeNetwork:
    return ChargeNetwork.of(*parts, activation)


def normalized(x):
    """Return normalized tensors and the factors, both exact in float32."""
    inverse = inverse_norm(x).float().double()
    return (x * inverse).float().double(), inverse


def predictions(module, **options):
    def predict_charges(x, inverse, parts):
        return module.predict_charges(x, inverse, network(parts, **options))

    return predict_charges


def gradients(module, **options):
    def predict_charges_backward(grad, x, inverse, parts, z1, z2):
        weights = network(parts, **options)
        return module.predict_charges_backward(grad, x, inverse, weights, z1, z2)

    return predict_charges_backward


def tensor_gradients(module):
    """Return the gradients of tensors as a function that does not overwrite its arguments."""

    def of_copies(grad, *others):
        return module.tensor_gradients(grad.clone(), *others)

    return of_copies


def scale_gradients(module):
    """Return the gradients of scaling as a function that does not overwrite its arguments."""

    def of_copies(grad, *others):
        return module.scale_gradients(grad.clone(), *others)

    return of_copies


@pytest.mark.parametrize("is_normalized", [True, False])
@pytest.mark.parametrize(("n_atoms", "channels", "n_charges"), SIZES)
def test_agrees_with_the_reference(n_atoms, channels, n_charges, is_normalized, family, dtype):
    operator, device = family
    x, inverse = normalized(numbers(9, n_atoms, channels))
    inputs = x, inverse if is_normalized else None, weights(channels, n_charges)
    assert_matches(predictions(operator), predictions(reference), inputs, device, dtype, 0)
    hidden = numbers(2, n_atoms, channels)
    inputs = numbers(n_atoms, 2 * n_charges), *inputs, *hidden
    assert_matches(gradients(operator), gradients(reference), inputs, device, dtype, 1)


@pytest.mark.parametrize("has_residual", [True, False])
@pytest.mark.parametrize("is_normalized", [True, False])
@pytest.mark.parametrize("has_delta", [True, False])
def test_tensors_agree(has_residual, is_normalized, has_delta, family, dtype):
    x, inverse = normalized(numbers(9, 5, 32))
    grad, residual, delta = numbers(3, 9, 5, 32)
    options = [
        value if given else None
        for value, given in ((residual, has_residual), (inverse, is_normalized), (delta, has_delta))
    ]
    inputs = grad, options[0], x, options[1], numbers(5, 3, 32), options[2]
    functions = tensor_gradients(family.module), tensor_gradients(reference)
    assert_matches(*functions, inputs, family.device, dtype, 1)


@pytest.mark.parametrize("activation", ["silu", "tanh"])
def test_scales_agree(activation, family, dtype):
    inputs = *numbers(2, 9, 63, 32), numbers(63, 3, 32), activation
    functions = scale_gradients(family.module), scale_gradients(reference)
    assert_matches(*functions, inputs, family.device, dtype, 1)


def test_gives_the_same_bits_again(family):
    operator, device = family
    n_atoms = LARGE[device == "cuda"]
    x, inverse = normalized(numbers(9, n_atoms, 32))
    inputs = x, inverse, weights(32, 16)
    assert_repeats(predictions(operator), inputs, device, torch.float32)
    inputs = numbers(n_atoms, 32), *inputs, *numbers(2, n_atoms, 32)
    assert_repeats(gradients(operator), inputs, device, torch.float32)


@pytest.mark.parametrize("activation", ["silu", "ssp"])
def test_reference_has_the_right_gradients(activation):
    n_atoms, f = 4, 8
    parts = network(weights(f, 3), activation)
    before, delta = numbers(9, n_atoms, f), numbers(9, n_atoms, f)
    before.requires_grad_()
    delta.requires_grad_()
    raw = before + delta + decompose(matmul(compose(delta), compose(delta)))
    inverse = inverse_norm(raw)
    x = raw * inverse
    predicted, z1, z2 = reference.predict_charges(x, inverse, parts)
    grad, grad_x = numbers(*predicted.shape), numbers(*x.shape)
    total = (predicted * grad).sum() + (x * grad_x).sum()
    expected = torch.autograd.grad(total, (before, delta))
    tensors = x.detach(), inverse.detach()
    factors = reference.predict_charges_backward(grad, *tensors, parts, z1.detach(), z2.detach())
    given = grad_x / 3, grad_x * 2 / 3, *tensors, factors, delta.detach()
    found = reference.tensor_gradients(*given)
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other, 1)


def test_reference_of_scaling_has_the_right_gradients():
    mapped, scales = numbers(9, 4, 8).requires_grad_(), numbers(4, 3, 8).requires_grad_()
    out = scale_parts(activate(scales, "silu").transpose(0, 1), mapped)
    grad = numbers(*out.shape)
    expected = torch.autograd.grad((out * grad).sum(), (mapped, scales))
    found = reference.scale_gradients(grad, mapped.detach(), scales.detach(), "silu")
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other, 1)


@pytest.mark.parametrize("is_normalized", [True, False])
def test_reference_follows_torchmd_net(is_normalized, monkeypatch):
    tensornet2 = import_tensornet2()
    monkeypatch.setattr(tensornet2, "decompose_tensor", tensornet2._decompose_tensor)
    sizes, f, n_charges = (4, 1, 7), 8, 16
    parts, raw = weights(f, n_charges), numbers(9, 12, f)
    module = tensornet2.ChargePredict(f, "silu", n_charges).double()
    module.opt = False  # the plain path
    linears = [layer for layer in module.q_mlp.layers if isinstance(layer, torch.nn.Linear)]
    with torch.no_grad():
        for layer, (first, second) in zip([module.q_norm, *linears], parts, strict=True):
            layer.weight.copy_(first)
            layer.bias.copy_(second)
    totals, batch = torch.tensor([1.0, 0.0, -2.0]).double(), random_batch(*sizes)
    systems = batch.systems.long()
    with torch.no_grad():
        expected = module(compose(raw).permute(2, 0, 1, 3), systems, totals[systems])
    inverse = inverse_norm(raw) if is_normalized else None
    x = raw * inverse if is_normalized else raw
    predicted, *_ = reference.predict_charges(x, inverse, network(parts))
    found = torch.empty_like(expected)
    equilibrate(predicted, totals, *batch, found)
    assert_close(found, expected, 0)


@pytest.mark.parametrize("group", ["O(3)", "SO(3)"])
def test_products_agree(group, family, dtype):
    functions = family.module.normalized_product, product_reference.normalized_product
    assert_matches(*functions, (*numbers(2, 9, 63, 32), group), family.device, dtype, 0)
