from __future__ import annotations

import pytest
import torch

from mlff_triton.kernels.tensornet2 import coulomb as operator
from mlff_triton.kernels.tensornet2.reference import coulomb as reference
from mlff_triton.kernels.types.charges import AtomOrder, ReactionField
from mlff_triton.testing import assert_close
from tests.kernels.tensornet2.batches import random_batch
from tests.support.random_inputs import (
    LARGE,
    assert_matches,
    assert_repeats,
    at_origins,
    moved,
    numbers,
    random_edges,
)
from tests.support.torchmd_net import import_torchmdnet

CUTOFF = 1.8  # Å; some of the edges are longer
PAIRS = [
    # sizes of systems, charges
    ((1,), 48),
    ((1, 0, 63, 2), 48),
    ((130,), 5),
    ((3,) * 20, 16),
    pytest.param((2000, 1, 700), 48, marks=pytest.mark.gpu),
    pytest.param((21,) * 400, 48, marks=pytest.mark.gpu),
]
EDGES = [
    # atoms, charges, neighbors, layout
    (1, 48, 5, "csr"),
    (5, 48, 5, "rows"),
    (63, 5, 40, "rows"),
    (500, 16, 5, "csr"),
    pytest.param(3000, 48, 60, "rows", marks=pytest.mark.gpu),
]


def positive(*shape: int):
    """Return positive weights that are exact in float32."""
    return (0.1 + torch.rand(shape)).double()


def pair_inputs(sizes, n_charges):
    """Return positions, charges, weights and the batch: a box with an atom per 8 Å^3."""
    n_atoms = sum(sizes)
    grid = torch.stack(torch.meshgrid(*[torch.arange(n_atoms ** (1 / 3) + 1)] * 3, indexing="ij"))
    sites = grid.flatten(1).T[torch.randperm(grid[0].numel())[:n_atoms]]
    positions = (2.0 * sites + 0.3 * torch.rand(n_atoms, 3)).double()
    _, rank, system_ptr = random_batch(*sizes)
    return positions, numbers(n_atoms, n_charges), positive(n_charges), rank, system_ptr, sizes


def pairs(module):
    """Return the energies of all pairs, and their gradients, in the working dtype."""

    def coulomb_pairs(positions, charges, weights, rank, system_ptr, sizes):
        order = AtomOrder(rank, system_ptr, max(sizes))
        found = module.coulomb_pairs(positions.double(), charges, weights, order)
        assert found[0].dtype == found[2].dtype == torch.float64
        return tuple(value.to(charges.dtype) for value in found)

    return coulomb_pairs


def truncated(module):
    """Return the energies within a cutoff, and their gradients, in the working dtype."""

    def coulomb_edges(charges, weights, edges):
        field = ReactionField.of(CUTOFF, device=charges.device)
        energies, grad_charges, edge_grad = module.coulomb_edges(charges, weights, edges, field)
        assert energies.dtype == torch.float64
        return energies.to(charges.dtype), grad_charges, at_origins(edge_grad, edges)

    return coulomb_edges


@pytest.mark.parametrize(("sizes", "n_charges"), PAIRS)
def test_pairs_agree_with_the_reference(sizes, n_charges, device, dtype):
    inputs = pair_inputs(sizes, n_charges)
    assert_matches(pairs(operator), pairs(reference), inputs, device, dtype, 1)


@pytest.mark.parametrize(("n_atoms", "n_charges", "neighbors", "layout"), EDGES)
def test_edges_agree_with_the_reference(n_atoms, n_charges, neighbors, layout, device, dtype):
    edges = random_edges(n_atoms, layout, neighbors)
    inputs = numbers(n_atoms, n_charges), positive(n_charges), edges
    assert_matches(truncated(operator), truncated(reference), inputs, device, dtype, 1)


@pytest.mark.parametrize("distance", [0.2, 1.0, 2.0, 4.5, 4.5828, 4.5999, 4.6, 20.0])
def test_a_pair_at_any_distance(distance, device, dtype):
    positions = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, distance]]).double()
    batch = torch.arange(2).int(), torch.tensor([0, 2]).int(), (2,)
    inputs = positions, numbers(2, 4), positive(4), *batch
    assert_matches(pairs(operator), pairs(reference), inputs, device, dtype, 1)


def test_gives_the_same_bits_again(device):
    n_atoms = LARGE[device == "cuda"]
    inputs = pair_inputs((n_atoms, 2, 40), 48)
    assert_repeats(pairs(operator), inputs, device, torch.float32)
    inputs = numbers(n_atoms, 48), positive(48), random_edges(n_atoms, "rows")
    assert_repeats(truncated(operator), inputs, device, torch.float32)


def test_a_system_has_the_same_bits_alone(device):
    positions, charges, weights, rank, system_ptr, sizes = moved(
        pair_inputs((40, 70), 16), device, torch.float32
    )
    together = pairs(operator)(positions, charges, weights, rank, system_ptr, sizes)
    rows, ptr = rank[40:].long(), torch.tensor([0, 70]).int().to(device)
    sorted_alone = torch.arange(70).int().to(device), ptr, (70,)
    alone = pairs(operator)(positions[40:], charges[rows], weights, *sorted_alone)
    for found, expected in zip(alone, together, strict=True):
        is_of_positions = expected.shape[1:] == (3,)
        assert torch.equal(found, expected[40:] if is_of_positions else expected[rows])


def test_reference_of_pairs_has_the_right_gradients():
    positions, charges, weights, *batch = pair_inputs((1, 6, 3), 4)
    positions.requires_grad_()
    charges.requires_grad_()
    energies, *found = pairs(reference)(positions, charges, weights, *batch)
    expected = torch.autograd.grad(energies.sum(), (charges, positions))
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other, 1)


def test_reference_of_edges_has_the_right_gradients():
    edges, charges, weights = random_edges(7, "rows"), numbers(7, 4), positive(4)
    charges.requires_grad_()
    growth = torch.zeros_like(edges.distance, requires_grad=True)
    longer = edges._replace(distance=edges.distance + growth)
    energies, grad_charges, edge_grad = truncated(reference)(charges, weights, longer)
    expected, slope = torch.autograd.grad(energies.sum(), (charges, growth))
    slots, _ = edges.live()
    assert_close(grad_charges, expected, 1)
    assert_close(edge_grad, slope[slots] * edges.direction[:, slots], 1)


def head(cutoff, n_charges):
    """Return TorchMD-NET's head for one layer of charges, whose network gives zero."""
    module = import_torchmdnet().models.output_modules.ScalarPlusWeightedCoulomb(
        8,
        dtype=torch.float64,
        q_dim=n_charges,
        num_layers=0,
        q_weights=[[1.0] * n_charges],
        coulomb_cutoff=cutoff,
    )
    with torch.no_grad():
        module.qweights.copy_(positive(n_charges))
        for parameter in module.output_network.parameters():
            parameter.zero_()
    return module, module._factor * module.qweights / module.qweights.sum()


@pytest.mark.parametrize("cutoff", [None, 5.0])
def test_reference_follows_torchmd_net(cutoff, device):
    sizes = 9, 4
    positions, charges, _, _, system_ptr, _ = pair_inputs(sizes, 6)
    module, weights = head(cutoff, 6)
    batch = torch.arange(2).repeat_interleave(torch.tensor(sizes))
    x = torch.cat([torch.zeros(13, 8).double(), charges], dim=1)
    inputs = x, None, torch.ones(13).long(), positions, batch
    expected = module.to(device).pre_reduce(*moved(inputs, device, torch.float64))[:, 0].cpu()
    if cutoff is None:
        order = AtomOrder(torch.arange(13).int(), system_ptr, 9)
        found, *_ = reference.coulomb_pairs(positions, charges, weights, order)
    else:
        vectors = positions[:, None] - positions
        linked = (vectors.norm(dim=2) < cutoff) & (batch[:, None] == batch)
        receivers, senders = linked.fill_diagonal_(False).nonzero(as_tuple=True)
        begin = linked.sum(1).cumsum(0) - linked.sum(1)
        edges = random_edges(1)._replace(
            slot_begin=begin.int(),
            slot_end=(begin + linked.sum(1)).int(),
            senders=senders.int(),
            origin=torch.arange(len(senders)).int(),
            direction=torch.zeros(3, len(senders)).double(),
            distance=vectors[receivers, senders].norm(dim=1),
        )
        found, *_ = reference.coulomb_edges(charges, weights, edges, ReactionField.of(cutoff))
    assert_close(found, expected, 0)
