from __future__ import annotations

import pytest
import torch

from mlff_triton.kernels.tensornet2.reference import equilibration as reference
from mlff_triton.testing import assert_close
from tests.kernels.tensornet2.batches import random_batch
from tests.support.random_inputs import assert_matches, assert_repeats, moved, numbers
from tests.support.torchmd_net import import_tensornet2

CASES = [
    # sizes of systems, charges, least weight of an atom
    ((1,), 16, 0.0),
    ((1, 0, 63, 2), 16, 0.01),
    ((500,), 5, 0.3),
    ((3,) * 40, 9, 0.0),
    pytest.param((65536, 1, 700), 16, 0.0, marks=pytest.mark.gpu),
    pytest.param((21,) * 4000, 16, 0.01, marks=pytest.mark.gpu),
]


def inputs(sizes, n_charges):
    """Return predictions, total charges and the batch."""
    totals = torch.randint(-2, 3, (len(sizes),)).double()
    return numbers(sum(sizes), 2 * n_charges), totals, *random_batch(*sizes)


def charges(module, floor=0.0):
    """Return the charges in the working dtype; totals and sums are always float64."""

    def equilibrate(predicted, totals, systems, rank, system_ptr):
        return run(module, predicted, totals, systems, rank, system_ptr, floor=floor)[0]

    return equilibrate


def run(module, predicted, totals, *batch, floor=0.0):
    """Return charges and what atoms share; rows of charges are parts of longer ones."""
    n_charges = predicted.shape[1] // 2
    found = predicted.new_full((len(predicted), 2 * n_charges), torch.nan)
    shared = module.equilibrate(predicted, totals.double(), *batch, found[:, n_charges:], floor)
    assert found[:, :n_charges].isnan().all()
    return found[:, n_charges:].clone(), shared


def gradients(module, floor=0.0):
    def equilibrate_backward(grad, predicted, totals, systems, rank, system_ptr):
        batch = systems, rank, system_ptr
        _, shared = run(module, predicted, totals, *batch, floor=floor)
        part_of_longer = torch.cat([grad, grad], dim=1)[:, : grad.shape[1]]
        return module.equilibrate_backward(part_of_longer, predicted, shared, *batch, floor)

    return equilibrate_backward


@pytest.mark.parametrize(("sizes", "n_charges", "floor"), CASES)
def test_agrees_with_the_reference(sizes, n_charges, floor, family, dtype):
    operator, device = family
    forward = inputs(sizes, n_charges)
    assert_matches(charges(operator, floor), charges(reference, floor), forward, device, dtype, 0)
    backward = numbers(sum(sizes), n_charges), *forward
    given = gradients(operator, floor), gradients(reference, floor)
    assert_matches(*given, backward, device, dtype, 1)


def test_gives_the_same_bits_again(family):
    operator, device = family
    forward = inputs((300, 2, 40), 16)
    assert_repeats(charges(operator), forward, device, torch.float32)
    backward = numbers(342, 16), *forward
    assert_repeats(gradients(operator), backward, device, torch.float32)


def test_a_system_has_the_same_bits_alone_and_in_any_order(family):
    operator, device = family
    predicted, totals, systems, rank, system_ptr = moved(
        inputs((30, 280), 16), device, torch.float32
    )
    batch = systems, rank, system_ptr
    together, _ = run(operator, predicted, totals, *batch)
    atoms = rank[30:].long()
    where = torch.zeros_like(systems[30:]), torch.arange(280).int().to(device)
    alone = (*where, torch.tensor([0, 280]).int().to(device))
    found, _ = run(operator, predicted[atoms], totals[1:], *alone)
    assert torch.equal(found, together[atoms])


@pytest.mark.parametrize("floor", [0.0, 0.01])
def test_charges_add_up(floor):
    predicted, totals, *batch = inputs((5, 40), 16)
    found, _ = run(reference, predicted, totals, *batch, floor=floor)
    sums = torch.zeros(2, 16).double().index_add(0, batch[0], found)
    assert (sums - totals[:, None]).abs().max() < 1e-5


def test_alike_atoms_share_alike_when_their_softness_vanishes():
    predicted = torch.tensor([[0.3, 0.0], [0.3, 0.0]]).double()
    batch = torch.zeros(2).int(), torch.arange(2).int(), torch.tensor([0, 2]).int()
    found, _ = run(reference, predicted, torch.zeros(1), *batch, floor=0.01)
    assert found.abs().max() < 1e-4
    without, _ = run(reference, predicted, torch.zeros(1), *batch)
    assert torch.equal(without, predicted[:, :1])  # nobody takes the excess


@pytest.mark.parametrize("floor", [0.0, 0.01])
def test_reference_has_the_right_gradients(floor):
    predicted, totals, *batch = inputs((1, 6, 3), 4)
    predicted.requires_grad_()
    found, shared = run(reference, predicted, totals, *batch, floor=floor)
    grad = numbers(*found.shape)
    expected = torch.autograd.grad((found * grad).sum(), predicted)[0]
    given = grad, predicted.detach(), shared.detach(), *batch, floor
    assert_close(reference.equilibrate_backward(*given), expected, 1)


def test_reference_follows_torchmd_net():
    predicted, totals, systems, rank, system_ptr = inputs((4, 1, 7), 16)
    module = import_tensornet2().ChargePredict(8, "silu", 16)
    batch = systems.long()
    c, f = predicted.tensor_split(2, dim=1)
    expected = module.qeq(c, f, batch, totals[batch])
    found, _ = run(reference, predicted, totals, systems, rank, system_ptr)
    assert_close(found, expected, 0)
