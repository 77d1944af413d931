from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from mlff_triton.kernels.common.reference.activations import activate, activate_derivative
from mlff_triton.kernels.common.reference.tensors import inverse_norm, map_parts, scale_parts
from mlff_triton.kernels.numerics.split import SplitWeight
from mlff_triton.kernels.tensornet import interaction as kernels
from mlff_triton.kernels.tensornet import tile_launch
from mlff_triton.kernels.tensornet.launch_sizes import LinearBlocks
from mlff_triton.kernels.tensornet.reference import interaction as reference
from mlff_triton.model import irreps
from mlff_triton.model.activations import ACTIVATIONS as EXACT_ACTIVATIONS
from mlff_triton.testing import assert_close
from tests.support.random_inputs import (
    ACTIVATIONS,
    LARGE,
    as_tuple,
    assert_matches,
    assert_repeats,
    charge_factors,
    moved,
    numbers,
    weights,
)

SIZES = [(1, 16), (5, 128), (37, 32), pytest.param(3000, 128, marks=pytest.mark.gpu)]


def mapped_inputs(n_atoms: int, channels: int) -> tuple[Tensor, SplitWeight]:
    return numbers(9, n_atoms, channels), weights(3, channels, channels)


def normalized(x: Tensor) -> tuple[Tensor, Tensor]:
    inverse = inverse_norm(x)
    return x * inverse, inverse


def embed_inputs(n_atoms, channels, activation="silu"):
    x, weight = mapped_inputs(n_atoms, channels)
    return x / 4, weight, numbers(n_atoms, 3, channels), activation  # large tensors lose precision


def update_inputs(n_atoms, channels, normalize=True):
    x, weight = mapped_inputs(n_atoms, channels)
    return x, weight, numbers(*x.shape), charge_factors(n_atoms), normalize


def product_backward_inputs(n_atoms, channels, group="O(3)"):
    grad, weight = mapped_inputs(n_atoms, channels)
    return grad, weight, *numbers(2, *grad.shape), charge_factors(n_atoms), group


def update_backward_inputs(n_atoms, channels):
    grad, weight = mapped_inputs(n_atoms, channels)
    residual, x, delta = numbers(3, *grad.shape)
    return grad, weight, residual, *normalized(x), delta, charge_factors(n_atoms)


def embed_backward_inputs(n_atoms, channels, activation="silu"):
    grad, weight = mapped_inputs(n_atoms, channels)
    residual, x, mapped = numbers(3, *grad.shape)
    return grad, weight, residual, *normalized(x), mapped, numbers(n_atoms, 3, channels), activation


def embed_input_backward_inputs(n_atoms, channels):
    grad, weight = mapped_inputs(n_atoms, channels)
    return grad, weight, numbers(*grad.shape), numbers(n_atoms, channels)


FORWARD = {"linear": mapped_inputs, "embed": embed_inputs, "update": update_inputs}
BACKWARD = {
    "product_backward": product_backward_inputs,
    "update_backward": update_backward_inputs,
    "embed_backward": embed_backward_inputs,
    "embed_input_backward": embed_input_backward_inputs,
}
OPERATORS = FORWARD | BACKWARD


def check(operator, name: str, inputs: tuple[object, ...], device: str, dtype: torch.dtype) -> None:
    functions = getattr(operator, name), getattr(reference, name)
    assert_matches(*functions, inputs, device, dtype, order=int(name in BACKWARD))


@pytest.mark.parametrize(("n_atoms", "channels"), SIZES)
@pytest.mark.parametrize("name", OPERATORS)
def test_agrees_with_the_reference(name, n_atoms, channels, operator, device, dtype):
    check(operator, name, OPERATORS[name](n_atoms, channels), device, dtype)


def test_so3_products(operator, device, dtype):
    check(operator, "product_backward", product_backward_inputs(3, 16, "SO(3)"), device, dtype)


def test_agrees_however_it_is_launched(device, monkeypatch):
    monkeypatch.setattr(kernels, "linear_blocks", lambda _: LinearBlocks(64, 16, 32, 4, 3))
    monkeypatch.setattr(tile_launch, "tensor_blocks", lambda _: LinearBlocks(8, 16, 16, 1, 1))
    for name, inputs in OPERATORS.items():
        check(kernels, name, inputs(11, 32), device, torch.float32)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(activation, operator, device):
    check(operator, "embed", embed_inputs(3, 16, activation), device, torch.float32)
    check(
        operator, "embed_backward", embed_backward_inputs(3, 16, activation), device, torch.float32
    )


def test_the_last_update_is_not_normalized(operator, device, dtype):
    *inputs, _ = update_inputs(5, 16)
    assert_matches(
        lambda *t: operator.update(*t, False)[:2],
        lambda *t: reference.update(*t, False)[:2],
        tuple(inputs),
        device,
        dtype,
        order=0,
    )


@pytest.mark.parametrize("name", OPERATORS)
def test_gives_the_same_bits_again(name, operator, device):
    inputs = OPERATORS[name](LARGE[device == "cuda"], 32)
    assert_repeats(getattr(operator, name), inputs, device, torch.float32)


@pytest.mark.parametrize("name", OPERATORS)
def test_leaves_its_inputs_alone(name, operator, device):
    inputs = moved(OPERATORS[name](3, 16), device, torch.float32)
    before = [t.clone() if isinstance(t, Tensor) else t for t in inputs]
    getattr(operator, name)(*inputs)
    for one, other in zip(inputs, before, strict=True):
        assert one is other or torch.equal(one, other)


@pytest.mark.parametrize("name", ["none", *ACTIVATIONS])
def test_reference_activations_and_their_derivatives(name):
    x = torch.cat([torch.linspace(-9, 9, 37).double(), torch.tensor([-100.0, 100.0])])
    x.requires_grad_()
    exact = EXACT_ACTIVATIONS[name](x) if name in EXACT_ACTIVATIONS else x * 1
    assert_close(activate(x, name), exact, 0)
    expected = torch.autograd.grad(exact.sum(), x)[0]
    assert_close(activate_derivative(x.detach(), name), expected, 1)


def pull_back(outputs: list[tuple[Tensor, Tensor]], inputs: tuple[Tensor, ...]):
    """Return the gradients of the inputs, given pairs of outputs and their gradients."""
    return torch.autograd.grad(sum((x * grad).sum() for x, grad in outputs), inputs)


@pytest.mark.parametrize("group", ["O(3)", "SO(3)"])
def test_reference_differentiates_products(group):
    grad, weight, y, message, charge_factor, _ = product_backward_inputs(4, 8, group)
    y.requires_grad_(), message.requires_grad_()
    a, b = irreps.compose(y), irreps.compose(message)
    if group == "O(3)":
        full = (irreps.matmul(a, b) + irreps.matmul(b, a)) * charge_factor[:, None]
    else:
        full = 2 * irreps.matmul(a, b)
    product = irreps.decompose(full)
    delta = map_parts(product / (irreps.irrep_norms(product).sum(0) + 1), weight.transposed)
    expected = pull_back([(delta, grad)], (y, message))
    found = reference.product_backward(
        grad, weight, y.detach(), message.detach(), charge_factor, group
    )
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other, 1)


def test_reference_differentiates_updates():
    p, weight, x, charge_factor, _ = update_inputs(4, 8)
    next_weight = weights(3, 8, 8)
    grad, residual = numbers(2, 9, 4, 8)
    p.requires_grad_(), x.requires_grad_()
    delta, out, inverse = reference.update(p, weight, x, charge_factor, True)
    full = irreps.compose(delta)
    bare = x + delta + charge_factor[:, None] * irreps.decompose(irreps.matmul(full, full))
    assert_close(out, bare / (irreps.irrep_norms(bare).sum(0) + 1), 0)
    assert_close(reference.update(p, weight, x, charge_factor, False)[1], bare, 0)

    outputs = [(map_parts(out, next_weight), grad), (out, residual)]
    expected_p, expected_x = pull_back(outputs, (p, x))
    given = (t.detach() for t in (out, inverse, delta))
    grad_x, grad_delta = reference.update_backward(
        grad, next_weight.transposed, residual, *given, charge_factor
    )
    assert_close(grad_x, expected_x, 1)
    assert_close(map_parts(grad_delta, weight.transposed), expected_p, 1)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_reference_differentiates_the_embedding(activation):
    x, weight, scales, _ = embed_inputs(4, 8)
    next_weight = weights(3, 8, 8)
    grad, residual = numbers(2, 9, 4, 8)
    grad_norm = numbers(4, 8)
    x.requires_grad_(), scales.requires_grad_()
    mapped, out, inverse = reference.embed(x, weight, scales, activation)
    scaled = irreps.scale(mapped, activate(scales, activation))
    assert_close(scale_parts(activate(scales, activation).transpose(0, 1), mapped), scaled, 0)
    assert_close(out, scaled / (irreps.irrep_norms(scaled).sum(0) + 1), 0)

    norm = irreps.irrep_norms(x).sum(0)
    outputs = [(map_parts(out, next_weight), grad), (out, residual), (norm, grad_norm)]
    expected_x, expected_scales = pull_back(outputs, (x, scales))
    given = (t.detach() for t in (out, inverse, mapped, scales))
    grad_mapped, grad_scales = reference.embed_backward(
        grad, next_weight.transposed, residual, *given, activation
    )
    assert_close(grad_scales, expected_scales, 1)
    found = reference.embed_input_backward(grad_mapped, weight.transposed, x.detach(), grad_norm)
    assert_close(found, expected_x, 1)


FEWER = 5  # of eleven atoms


def in_part(name: str) -> tuple[tuple[object, ...], tuple[object, ...], int]:
    """Return inputs with tensors of fewer atoms, equal ones with zeros or all rows, and rows."""
    inputs = list(OPERATORS[name](11, 32))
    if name == "update_backward" or name == "embed_backward":
        inputs[2] = inputs[2][:, :FEWER]  # the residual
        equal = [*inputs[:2], functional.pad(inputs[2], (0, 0, 0, 11 - FEWER)), *inputs[3:]]
        return tuple(inputs), tuple(equal), 11
    first = {"update": [0], "product_backward": [0, 3]}[name]
    shorter = [a[:, :FEWER] if k in first else a for k, a in enumerate(inputs)]
    return tuple(shorter), tuple(inputs), FEWER


@pytest.mark.parametrize(
    "name", ["update", "product_backward", "update_backward", "embed_backward"]
)
def test_fewer_atoms_in_some_arguments(name, operator, device, dtype):
    given, equal, n_rows = in_part(name)
    check(operator, name, contiguous(given), device, dtype)
    found = as_tuple(getattr(reference, name)(*given))
    for one, other in zip(found, as_tuple(getattr(reference, name)(*equal)), strict=True):
        axis = one.shape.index(n_rows)
        assert_close(one, other.narrow(axis, 0, n_rows), 1)


def contiguous(inputs: tuple[object, ...]) -> tuple[object, ...]:
    return tuple(a.contiguous() if isinstance(a, Tensor) else a for a in inputs)


@pytest.mark.parametrize("name", ["linear", "product_backward"])
def test_rows_to_be_filled_follow(name, operator, device, dtype):
    """All other rows are the same."""
    inputs, others = moved(OPERATORS[name](5, 32), device, dtype), 3
    plain = as_tuple(getattr(operator, name)(*inputs))
    longer = as_tuple(getattr(operator, name)(*inputs, others))
    assert longer[-1].shape[1] == 5 + others
    for one, other in zip(plain, longer, strict=True):
        assert torch.equal(one, other[:, :5])
