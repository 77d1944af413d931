from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mlff_triton.kernels.tensornet.reference import forces as reference
from mlff_triton.testing import assert_close
from tests.support.random_inputs import LARGE, moved, numbers, random_edges

SIZES = [1, 5, 37, pytest.param(3000, marks=pytest.mark.gpu)]


def inputs(n_atoms: int, layout: str, dense: bool = False) -> tuple[object, ...]:
    """Return edge gradients, edges, energies, constant energies and order."""
    edges = random_edges(n_atoms, layout, neighbors=4 * n_atoms if dense else 5)
    slots, _ = edges.live()
    grad = torch.full_like(edges.direction, torch.nan)
    grad[:, edges.origin[slots].long()] = numbers(3, len(slots))
    order = torch.randperm(n_atoms).int()
    return grad, edges, numbers(n_atoms), 1000 * numbers(n_atoms), order


def sums(module, dtype, device):
    """Return the operator at a dtype; only constant energies are always in float64."""

    def forces(*arguments):
        grad, edges, energies, offsets, order, *options = moved(arguments, device, dtype)
        return module.forces(grad, edges, energies, offsets.double(), order, *options)

    return forces


@pytest.mark.parametrize("layout", ["csr", "rows"])
@pytest.mark.parametrize("n_atoms", SIZES)
@pytest.mark.parametrize("halves", [False, True])
def test_agrees_with_the_reference(halves, n_atoms, layout, operator, device, dtype):
    given = inputs(n_atoms, layout)
    check(operator, (*given, halves), device, dtype)


@pytest.mark.parametrize("operator", ["kernels", "loops", "reference"], indirect=True)
def test_adds_to_other_forces(operator, device):
    given, others = inputs(9, "rows"), (numbers(9, 3), numbers(7, 9))
    expected = sums(operator, torch.float64, device)(*given)
    copies = tuple(other.clone() for other in others)
    found = sums(operator, torch.float64, device)(*given, False, copies)
    for total, part, other in zip(found, expected, others, strict=True):
        assert_close(total, part.cpu() + other, 1)


@pytest.mark.parametrize("operator", ["kernels", "loops", "reference"], indirect=True)
def test_halves_of_virials(operator, device):
    """Both ends of an edge have as much, and the sum is the same."""
    given = grad, edges, *_, order = inputs(9, "rows")
    _, atoms = sums(operator, torch.float64, device)(*given)
    _, halved = sums(operator, torch.float64, device)(*given, True)
    assert_close(halved.sum(1), atoms.sum(1), 1)
    slots, receivers = edges.live()
    expected = torch.zeros(9).double()
    for slot, receiver in zip(slots, receivers.tolist(), strict=True):
        xx = edges.direction[0, slot] * edges.distance[slot] * grad[0, edges.origin[slot].long()]
        for atom in (receiver, int(edges.senders[slot])):
            expected[order[atom]] += xx / 2
    assert_close(halved[1], expected, 1)


def test_more_neighbors_than_lanes(operator, device, dtype):
    given = inputs(80, "csr", dense=True)
    assert (given[1].slot_end - given[1].slot_begin).max() > 64
    check(operator, given, device, dtype)


def check(operator, given, device, dtype):
    forces, atoms = sums(operator, dtype, device)(*given)
    expected_forces, expected_atoms = sums(reference, torch.float64, "cpu")(*given)
    assert forces.dtype == atoms.dtype == torch.float64
    assert_close(forces, expected_forces, 1, dtype)
    assert_close(atoms[0], expected_atoms[0], 0, dtype)
    assert_close(atoms[1:], expected_atoms[1:], 1, dtype)
    assert_close(forces.sum(0), torch.zeros(3), 0, floor=10.0)  # Newton's third law


def test_gives_the_same_bits_again(operator, device):
    given = inputs(LARGE[device == "cuda"], "rows")
    runs = [sums(operator, torch.float32, device)(*given) for _ in range(2)]
    for one, other in zip(*runs, strict=True):
        assert torch.equal(one, other)


def test_reference_sums_by_hand():
    grad, edges, energies, offsets, order = given = inputs(9, "csr")
    forces, atoms = reference.forces(*given)
    _, receivers = edges.live()
    vectors = edges.direction * edges.distance
    for atom, user in enumerate(order.tolist()):
        received = (receivers == atom).nonzero()[:, 0]
        sent = edges.reverse[received].long()
        assert_close(forces[user], (grad[:, sent] - grad[:, received]).sum(1), 1)
        w = vectors[:, received] @ grad[:, received].T
        w = (w + w.T) / 2
        xx_to_xy = w[[0, 1, 2, 1, 0, 0], [0, 1, 2, 2, 2, 1]]
        assert_close(atoms[1:, user], xx_to_xy, 1)
        assert_close(atoms[0, user], energies[atom] + offsets[atom], 0)


def totals_inputs(counts: list[int], device: str) -> tuple[Tensor, ...]:
    ptr = torch.tensor([0, *counts]).cumsum(0).int()
    atoms, status = numbers(7, int(ptr[-1])), torch.zeros(int(ptr[-1])).int()
    return tuple(t.to(device) for t in (atoms, status, ptr))


@pytest.mark.parametrize("counts", [[1], [5, 0, 37], [1300, 2]])
def test_totals(counts, operator, device):
    inputs = atoms, *_ = totals_inputs(counts, device)
    totals = operator.totals(*inputs)
    assert_close(totals, reference.totals(*inputs), 0)
    parts = zip(totals, atoms.split(counts, dim=1), strict=True)
    for total, part in parts:
        energy, xx, yy, zz, yz, xz, xy = part.sum(1)
        expected = torch.stack([energy, xx, xy, xz, xy, yy, yz, xz, yz, zz])
        assert_close(total[:10], expected, 1)
        assert total[10] == 0


@pytest.mark.parametrize("operator", ["kernels", "loops", "reference"], indirect=True)
def test_totals_name_the_worst_status(operator, device):
    atoms, status, ptr = totals_inputs([2000, 3, 2], device)
    status[7], status[7 + 1024], status[2000] = 1, 2, 4
    assert operator.totals(atoms, status, ptr)[:, 10].tolist() == [2, 4, 0]
