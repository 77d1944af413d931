from __future__ import annotations

import pytest
import torch

from mlff_triton.kernels.tensornet2.cpu import coulomb as loops
from mlff_triton.kernels.tensornet2.reference import coulomb as reference
from mlff_triton.kernels.tensornet2.reference.coulomb import _damping
from mlff_triton.kernels.types.charges import AtomOrder, CoulombSums, EwaldField, ReactionField
from mlff_triton.testing import assert_close
from tests.kernels.tensornet2.batches import random_batch
from tests.support.random_inputs import (
    LARGE,
    assert_matches,
    assert_repeats,
    moved,
    numbers,
    random_edges,
)
from tests.support.torchmd_net import import_torchmdnet

CUTOFF = 1.8  # Å; some of the edges are longer
FIELDS = {
    "reaction field": lambda device: ReactionField.of(CUTOFF, device=device),
    "Ewald": lambda device: EwaldField.of(CUTOFF, 0.9, device),
}
fields = pytest.mark.parametrize("field", FIELDS)
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
        given = positions.double(), charges, weights, weights.flip(0), order
        return in_dtype(module.coulomb_pairs(*given), charges.dtype)

    return coulomb_pairs


def truncated(module, field="reaction field"):
    """Return the energies within a cutoff, and their gradients, in the working dtype."""

    def coulomb_edges(charges, weights, edges):
        order = torch.arange(len(charges), device=charges.device).flip(0).int()
        constants = FIELDS[field](charges.device)
        given = charges, weights, weights.flip(0), edges, constants, order
        return in_dtype(module.coulomb_edges(*given), charges.dtype)

    return coulomb_edges


def in_dtype(sums: CoulombSums, dtype: torch.dtype) -> CoulombSums:
    assert sums.forces.dtype == sums.atoms.dtype == torch.float64
    return CoulombSums(*(value.to(dtype) for value in sums))


@pytest.mark.parametrize(("sizes", "n_charges"), PAIRS)
def test_pairs_agree_with_the_reference(sizes, n_charges, family, dtype):
    operator, device = family
    inputs = pair_inputs(sizes, n_charges)
    assert_matches(pairs(operator), pairs(reference), inputs, device, dtype, 1)


@fields
@pytest.mark.parametrize(("n_atoms", "n_charges", "neighbors", "layout"), EDGES)
def test_edges_agree_with_the_reference(
    n_atoms, n_charges, neighbors, layout, field, family, dtype
):
    operator, device = family
    edges = random_edges(n_atoms, layout, neighbors)
    inputs = numbers(n_atoms, n_charges), positive(n_charges), edges
    functions = truncated(operator, field), truncated(reference, field)
    assert_matches(*functions, inputs, device, dtype, 1)


@pytest.mark.parametrize("distance", [0.2, 1.0, 2.0, 4.5, 4.5828, 4.5999, 4.6, 8.9])
def test_a_pair_of_an_ewald_sum_at_any_distance(distance, family, dtype):
    operator, device = family
    edges = random_edges(2, "csr", 1)
    edges = edges._replace(distance=torch.full_like(edges.distance, distance))

    def pair(module):
        def compute(charges, weights, edges):
            field = EwaldField.of(9.0, 0.35, charges.device)
            order = torch.arange(2, device=charges.device).int()
            given = charges, weights, weights, edges, field, order
            return in_dtype(module.coulomb_edges(*given), charges.dtype)

        return compute

    inputs = numbers(2, 4), positive(4), edges
    assert_matches(pair(operator), pair(reference), inputs, device, dtype, 1)


@pytest.mark.parametrize("distance", [0.2, 1.0, 2.0, 4.5, 4.5828, 4.5999, 4.6, 20.0])
def test_a_pair_at_any_distance(distance, family, dtype):
    operator, device = family
    positions = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, distance]]).double()
    batch = torch.arange(2).int(), torch.tensor([0, 2]).int(), (2,)
    inputs = positions, numbers(2, 4), positive(4), *batch
    assert_matches(pairs(operator), pairs(reference), inputs, device, dtype, 1)


def test_gives_the_same_bits_again(family):
    operator, device = family
    n_atoms = LARGE[device == "cuda"]
    inputs = pair_inputs((n_atoms, 2, 40), 48)
    assert_repeats(pairs(operator), inputs, device, torch.float32)
    inputs = numbers(n_atoms, 48), positive(48), random_edges(n_atoms, "rows")
    for field in FIELDS:
        assert_repeats(truncated(operator, field), inputs, device, torch.float32)


def test_a_system_has_the_same_bits_alone(family):
    operator, device = family
    positions, charges, weights, rank, system_ptr, sizes = moved(
        pair_inputs((40, 70), 16), device, torch.float32
    )
    together = pairs(operator)(positions, charges, weights, rank, system_ptr, sizes)
    rows, ptr = rank[40:].long(), torch.tensor([0, 70]).int().to(device)
    sorted_alone = torch.arange(70).int().to(device), ptr, (70,)
    alone = pairs(operator)(positions[40:], charges[rows], weights, *sorted_alone)
    assert torch.equal(alone.grad_charges, together.grad_charges[rows])
    assert torch.equal(alone.charges, together.charges[40:])
    assert torch.equal(alone.forces, together.forces[40:])
    assert torch.equal(alone.atoms, together.atoms[:, 40:])


@pytest.mark.slow
def test_memory_grows_with_the_atoms_on_a_cpu():
    """All distances between these atoms would take 5 GB."""
    n_atoms = 25_000
    positions, charges, weights, rank, ptr, _ = pair_inputs((n_atoms,), 16)
    weights[2:] = 0.0
    order = AtomOrder(rank, ptr, n_atoms)
    found = loops.coulomb_pairs(positions, charges, weights, weights, order)
    assert (found.grad_charges[:, 2:] == 0).all()
    for atom in (0, 12_345, n_atoms - 1):
        others = torch.arange(n_atoms) != atom
        distance = (positions[others] - positions[atom]).norm(dim=1)
        factor = _damping(distance)[0] / distance
        expected = 2 * weights * (factor @ charges[rank[others].long()])
        assert_close(found.grad_charges[rank[atom]], expected, 1)
    assert found.forces.sum(0).abs().max() < 1e-10 * found.forces.abs().max()


def test_reference_of_pairs_has_the_right_gradients():
    positions, charges, weights, *batch = pair_inputs((1, 6, 3), 4)
    positions.requires_grad_()
    charges.requires_grad_()
    found = pairs(reference)(positions, charges, weights, *batch)
    expected = torch.autograd.grad(found.atoms[0].sum(), (charges, positions))
    assert_close(found.grad_charges, expected[0], 1)
    assert_close(found.forces, -expected[1], 1)


@pytest.mark.parametrize("is_reference", [True, False])
def test_virials_of_pairs(is_reference, family):
    """They are symmetric, as rotated atoms have the same energy."""
    inputs = moved(pair_inputs((7,), 4), family.device, torch.float64)
    positions, charges, weights, *batch = inputs
    found = pairs(reference if is_reference else family.module)(positions, charges, weights, *batch)
    full = torch.einsum("ia,ib->ab", positions, -found.forces).cpu()
    assert_close(full, full.T, 1)
    xx_to_xy = full[[0, 1, 2, 1, 0, 0], [0, 1, 2, 2, 2, 1]]
    assert_close(found.atoms[1:].sum(1), xx_to_xy, 1)


@fields
def test_reference_of_edges_has_the_right_gradients(field):
    edges, charges, weights = random_edges(7, "rows"), numbers(7, 4), positive(4)
    charges.requires_grad_()
    growth = torch.zeros_like(edges.distance, requires_grad=True)
    longer = edges._replace(distance=edges.distance + growth)
    found = truncated(reference, field)(charges, weights, longer)
    expected, slope = torch.autograd.grad(found.atoms[0].sum(), (charges, growth))
    assert_close(found.grad_charges, expected, 1)
    slots, receivers = edges.live()
    grad, none = (slope * edges.direction)[:, slots].T, torch.zeros(7, 3).double()
    forces = none.index_add(0, edges.senders[slots].long(), grad).index_add(0, receivers, -grad)
    assert_close(found.forces.flip(0), forces, 1)
    vectors = (edges.direction * edges.distance)[:, slots].T
    xy = torch.zeros(7).double().index_add(0, receivers, vectors[:, 0] * grad[:, 1])
    assert_close(found.atoms[6].flip(0), xy, 1)


@fields
def test_forces_on_both_ends_of_an_edge_are_opposite(field, family):
    operator, device = family
    inputs = numbers(100, 48), positive(48), random_edges(100, "rows", 5)
    charges, weights, edges = moved(inputs, device, torch.float32)
    order = torch.arange(100, device=device).int()
    given = charges, weights, weights, edges, FIELDS[field](device), order
    forces = operator.coulomb_edges(*given).forces
    assert forces.sum(0).abs().max() < 1e-12 * forces.abs().max()


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
        found = reference.coulomb_pairs(positions, charges, weights, weights, order).atoms[0]
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
        given = charges, weights, weights, edges, ReactionField.of(cutoff)
        found = reference.coulomb_edges(*given, torch.arange(13)).atoms[0]
    assert_close(found, expected, 0)
