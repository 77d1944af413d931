from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from mlff_triton.kernels.common.reference.activations import activate
from mlff_triton.kernels.numerics.split import SplitWeight
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
    moved,
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


def uncertain_head_inputs(n_atoms: int, channels: int) -> tuple[object, ...]:
    """Return inputs with a map to uncertainties, which kernels take in two pieces."""
    given = head_inputs(n_atoms, channels)
    return *given, weights(64, max(16, channels // 2)), torch.randperm(n_atoms).int()


CASES = {
    "readout": (readout_inputs, 0),
    "readout_backward": (backward_inputs, 1),
    "scalar_head": (head_inputs, 1),
    "scalar_head, uncertain": (uncertain_head_inputs, 1),
}  # inputs, and derivative order of the outputs


@pytest.mark.parametrize(("n_atoms", "channels"), SIZES)
@pytest.mark.parametrize("name", CASES)
def test_agrees_with_the_reference(name, n_atoms, channels, operator, device, dtype):
    inputs, order = CASES[name]
    functions = (getattr(module, name.partition(",")[0]) for module in (operator, reference))
    assert_matches(*functions, inputs(n_atoms, channels), device, dtype, order)


@pytest.mark.parametrize("first", ["none", "tanh"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(first, activation, operator, device):
    functions = operator.scalar_head, reference.scalar_head
    assert_matches(*functions, head_inputs(3, 16, first, activation), device, torch.float32, 1)


@pytest.mark.parametrize("name", CASES)
def test_gives_the_same_bits_again(name, operator, device):
    inputs = CASES[name][0](LARGE[device == "cuda"], 32)
    assert_repeats(getattr(operator, name.partition(",")[0]), inputs, device, torch.float32)


def known(deviations: SplitWeight, order: Tensor, device: str, dtype: torch.dtype):
    return moved(deviations, device, dtype), order.to(device)


@pytest.mark.parametrize("n_rows", [16, 32, 256])
def test_uncertainties_are_norms_in_the_users_order(n_rows, operator, device, dtype):
    """Atoms without a row, as ghosts are, get none, and results of others are as without them."""
    *given, _, _ = uncertain_head_inputs(5, 32)
    given = moved(tuple(given), device, dtype)
    deviations, order = weights(n_rows, 16), torch.tensor([2, 0, 6, 1, 4, 3, 5]).int()
    energies, grad, found = operator.scalar_head(*given, *known(deviations, order, device, dtype))
    plain = operator.scalar_head(*given)
    assert plain[2] is None
    assert_close(energies, plain[0], 0, dtype)
    assert_close(grad, plain[1], 1, dtype)
    hidden, weight1, bias1 = (moved(t, "cpu", torch.float64) for t in given[:3])
    last = functional.silu(functional.silu(hidden) @ weight1.weight.T + bias1)
    assert found.shape == (7,)
    assert found.dtype == dtype
    expected = torch.linalg.norm(last @ deviations.weight.T, dim=1)
    assert_close(found[order[:5].long()], expected, 1, dtype)


@pytest.mark.gpu
def test_an_atom_has_the_same_uncertainty_among_others(operator, device):
    n_atoms = LARGE[1]
    hidden, *rest, deviations, _ = moved(uncertain_head_inputs(n_atoms, 32), device, torch.float32)
    order = torch.randperm(n_atoms).int().to(device)
    together = operator.scalar_head(hidden, *rest, deviations, order)[2][order.long()]
    first = torch.zeros(1).int().to(device)
    for k in (0, n_atoms // 2, n_atoms - 1):
        alone = operator.scalar_head(hidden[k : k + 1].clone(), *rest, deviations, first)[2]
        assert torch.equal(alone[0], together[k])


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_deep_heads_know_their_uncertainty(depth, operator, device, dtype):
    widths = [16, *[8] * depth, 1]
    maps = [(numbers(a, b), numbers(b)) for a, b in pairwise(widths)]
    hidden, deviations, order = numbers(4, 16), weights(16, widths[-2]), torch.randperm(4).int()
    last = activate(hidden, "tanh")
    for weight, bias in maps[:-1]:
        last = torch.tanh(last @ weight + bias)
    given = moved((hidden, maps, "tanh", "tanh"), device, dtype)
    found = operator.deep_head(*given, *known(deviations, order, device, dtype))[2]
    expected = torch.linalg.norm(last @ deviations.weight.T, dim=1)
    assert_close(found[order.long()], expected, 0, dtype)


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
    alone, last = head(activate(hidden, first))
    energies, deviations, order = 3.5 * alone, weights(16, 16), torch.randperm(5).int()
    grad = torch.autograd.grad(energies.sum(), hidden)[0]

    def maps(linears):
        return [
            (m.weight.detach().T.to(device, dtype), m.bias.detach().to(device, dtype))
            for m in linears
        ]

    found = operator.gated_head(
        hidden.detach().to(device, dtype),
        maps(head.values),
        maps(head.gates),
        3.5,
        first,
        *known(deviations, order, device, dtype),
    )
    assert found[0].dtype == dtype
    assert_close(found[0], energies, 0, dtype)
    assert_close(found[1], grad, 1, dtype)
    expected = torch.linalg.norm(last @ deviations.weight.T, dim=1)
    assert_close(found[2][order.long()], expected, 0, dtype)
