"""Operators for parts of a system on CPUs: they find what they would find for the whole system."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import ModuleType

import pytest
import torch
from torch import Tensor

from mlff_triton.kernels.types.charges import AtomOrder, ReactionField
from mlff_triton.testing import assert_close
from tests.kernels.tensornet2.test_edge_messages import backward_inputs, network
from tests.support.random_inputs import numbers, random_edges

FIRST, N_ATOMS, Q = 14, 40, 5


@pytest.fixture(params=["cpu", "reference"])
def operators(request) -> ModuleType:
    return import_module(f"mlff_triton.kernels.tensornet2.{request.param}.operators")


def test_messages_to_the_first_atoms(operators):
    """Gradients of messages to the others are zero in the whole system."""
    grad, y, direct, terms, parts, edges, slope, _ = backward_inputs(N_ATOMS, 16, 5, False)
    plain = network(parts, halves=False)
    grad[:, FIRST:], direct[:, FIRST:] = 0, 0

    def compute(edges, n_receivers):
        message, rows = operators.edge_messages(y, terms, plain, edges, operators.edge_rows(edges))
        found = slope.clone()

        def first(tensor):
            return tensor[:, :n_receivers].contiguous()

        given = first(grad), y, first(direct), terms, plain, edges, rows
        grad_y, grad_sent, *others = operators.edge_messages_backward(*given, found, False)
        nothing = torch.zeros_like(grad_sent[:n_receivers])
        received = operators.charge_gradients(nothing, *others, plain, edges, None)
        return message, grad_y, grad_sent, received, found

    whole = compute(edges, N_ATOMS)
    itself = torch.arange(len(edges.senders), dtype=torch.int32)
    part = compute(edges.of_first(FIRST)._replace(reverse=itself), FIRST)
    assert_close(part[0], whole[0][:, :FIRST], 0)
    assert_close(part[1], whole[1], 1)
    assert_close(part[2], whole[2], 1)
    assert_close(part[3], whole[3][:FIRST], 1)
    origins = edges.origin[edges.of_first(FIRST).live()[0]].long()
    assert_close(part[4][origins], whole[4][edges.reverse[origins].long()], 1)


def in_two_parts(compute: Callable[[slice, Callable[[Tensor], Tensor]], Tensor]) -> Tensor:
    """Join the results of both parts, whose sums are those of both."""
    sums: list[Tensor] = []
    halves = slice(0, FIRST), slice(FIRST, N_ATOMS)
    for half in halves:
        compute(half, lambda own: sums.append(own.clone()) or own)
    return torch.cat([compute(half, lambda _: sums[0] + sums[1]) for half in halves])


def test_charges_are_shared_with_other_parts(operators):
    predicted, grad = numbers(N_ATOMS, 2 * Q), numbers(N_ATOMS, Q)

    def batch(n_atoms):
        rank = torch.arange(n_atoms).int()
        return torch.zeros_like(rank), rank, torch.tensor([0, n_atoms]).int()

    def charges(atoms, sum_parts):
        own, total = predicted[atoms], torch.ones(1).double()
        found = torch.empty(len(own), Q).double()
        shared = operators.equilibrate(own, total, *batch(len(own)), found, 0.01, sum_parts)
        return found, shared

    whole, shared = charges(slice(None), None)
    assert_close(in_two_parts(lambda *given: charges(*given)[0]), whole, 0)

    def gradients(atoms, sum_parts):
        given = grad[atoms], predicted[atoms], shared, *batch(len(grad[atoms]))
        return operators.equilibrate_backward(*given, 0.01, sum_parts)

    assert_close(in_two_parts(gradients), gradients(slice(None), None), 1)


def test_coulomb_energy_of_some_atoms(operators):
    positions, charges, weights = 3 * numbers(N_ATOMS, 3), numbers(N_ATOMS, Q), numbers(Q)
    batch = torch.arange(N_ATOMS).int(), torch.tensor([0, N_ATOMS]).int(), N_ATOMS
    given = positions, charges, weights, weights
    whole = operators.coulomb_pairs(*given, AtomOrder(*batch))
    own = slice(FIRST, N_ATOMS - 3)
    part = operators.coulomb_pairs(*given, AtomOrder(*batch, own))
    for found, expected in zip(part[:3], whole[:3], strict=True):
        assert_close(found, expected[own], 1)
    assert_close(part.atoms, whole.atoms[:, own], 1)


def test_coulomb_energy_within_a_cutoff_of_the_first_atoms(operators):
    charges, weights, edges = numbers(N_ATOMS, Q), numbers(Q), random_edges(N_ATOMS, "rows", 9)
    order, field = torch.arange(N_ATOMS).int(), ReactionField.of(1.8)
    given = charges, weights, weights
    whole = operators.coulomb_edges(*given, edges, field, order)
    part = operators.coulomb_edges(*given, edges.of_first(FIRST), field, order[:FIRST])
    for found, expected in zip(part[:3], whole[:3], strict=True):
        assert_close(found, expected[:FIRST], 1)
    assert_close(part.atoms, whole.atoms[:, :FIRST], 1)
