"""Meshes of several charges per atom, against as many single ones."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial, reduce

import pytest
import torch

from mlff_triton._common.cuda_graphs import GraphPool, record
from mlff_triton.kernels.electrostatics import charge_channels
from mlff_triton.kernels.electrostatics.reference.charge_channels import (
    channel_potentials,
    channel_sums,
)
from mlff_triton.kernels.electrostatics.reference.mesh_ewald import mesh_ewald
from mlff_triton.kernels.electrostatics.reference.slab import slab_correction
from mlff_triton.kernels.electrostatics.reference.systems import sum_systems
from mlff_triton.kernels.electrostatics.types import ChannelSums, Electrostatics
from mlff_triton.testing import assert_close
from tests.kernels.electrostatics.cases import MESH, Charged, charged
from tests.support.exchanges import Board

CHANNELS = 3


def channels(case: Charged) -> tuple[torch.Tensor, torch.Tensor]:
    """Return charges [N, 3], which need not be neutral, and weights [3]."""
    torch.manual_seed(len(case.charges))
    charges = torch.rand(len(case.charges), CHANNELS).double() - 0.4
    return charges, torch.tensor([0.7, -0.2, 1.3]).double()


def single(charges, positions, cell, batch, parameters) -> Electrostatics:
    """Return the sum over waves for one kind of charge, and the correction of slabs."""
    atoms = charges, positions, cell, batch
    found = mesh_ewald(*atoms, parameters)
    if parameters.slab is None:
        return found
    total = partial(sum_systems, system=batch, n_systems=len(cell))
    slab = slab_correction(*atoms, parameters.slab, total)
    return Electrostatics(*map(torch.add, found, slab))


def truth(case: Charged, charges, weights, parameters) -> tuple[torch.Tensor, ...]:
    """Return potentials, gradients and virials, from one mesh per kind of charge."""
    leaves = [t.clone().requires_grad_() for t in (case.positions, case.cell)]
    found = [single(q, *leaves, case.batch, parameters) for q in charges.T]
    energies = torch.stack([each.energy for each in found], dim=1)
    gradient, by_cell = torch.autograd.grad((energies @ weights).sum(), leaves)
    outer = case.positions[:, :, None] * gradient[:, None]
    virial = torch.zeros_like(case.cell).index_add(0, case.batch, outer) + case.cell.mT @ by_cell
    return torch.stack([each.potential.detach() for each in found], dim=1), gradient, virial


@pytest.mark.parametrize(("order", "slab"), [(4, None), (5, None), (6, None), (5, 0), (4, 2)])
@pytest.mark.parametrize(
    "structures", [[(9, "triclinic")], [(1, "small")], [(7, "cubic"), (1, "cubic"), (20, "small")]]
)
def test_agrees_with_single_meshes(structures, order, slab):
    case, parameters = charged(*structures), replace(MESH, order=order, slab=slab)
    charges, weights = channels(case)
    atoms = case.positions, case.cell, case.batch, parameters
    expected = truth(case, charges, weights, parameters)
    found = channel_sums(charges, weights, *atoms)
    for value, exact, degree in zip(found, expected, (0, 1, 1), strict=True):
        assert_close(value, exact, degree, floor=1.0)
    assert_close(channel_potentials(charges, *atoms), expected[0], 0)


def test_bits_do_not_depend_on_threads(monkeypatch):
    case = charged((300, "cubic"))
    charges, weights = channels(case)
    before, found = torch.get_num_threads(), []
    try:
        for n_threads in (1, 2, 3):
            torch.set_num_threads(n_threads)
            found.append(channel_sums(charges.float(), weights, *case.atoms[1:], MESH))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))
    assert found[0].potential.dtype is torch.float32
    monkeypatch.setattr("mlff_triton.kernels.electrostatics.reference.charge_channels.ATOMS", 7)
    assert all(
        map(torch.equal, found[0], channel_sums(charges.float(), weights, *case.atoms[1:], MESH))
    )


@pytest.mark.parametrize(
    "structures", [[(40, "triclinic")], [(1, "small")], [(7, "cubic"), (1, "cubic"), (20, "small")]]
)
@pytest.mark.parametrize("slab", [None, 1])
def test_kernels_agree_with_the_reference(structures, slab, device, dtype):
    case, parameters = charged(*structures), replace(MESH, slab=slab)
    charges, weights = channels(case)
    charges = charges.to(dtype)
    expected = channel_sums(charges.double(), weights, *case.atoms[1:], parameters)
    atoms = case.positions.to(device), case.cell.to(device), case.batch.int().to(device)
    given = charges.to(device), weights.to(device), *atoms, parameters
    found = charge_channels.channel_sums(*given)
    assert found.potential.dtype is dtype
    for value, exact, degree in zip(found, expected, (0, 1, 1), strict=True):
        assert_close(value.cpu(), exact, degree, dtype, floor=1.0)
    assert all(map(torch.equal, found, charge_channels.channel_sums(*given)))


def in_parts(operator, n_parts: int, charges, weights, atoms, parameters) -> list[ChannelSums]:
    """Compute every n-th atom by itself, and exchange sums with the others."""
    board, (positions, cell, system) = Board(n_parts), atoms

    def compute(k: int) -> ChannelSums:
        own = slice(k, None, n_parts)
        of_atoms = positions[own], cell, system[own].contiguous()
        given = charges[own], weights, *of_atoms, parameters
        with board.turn():
            return operator(*given, lambda values: reduce(torch.add, board.post(k, values)))

    with ThreadPoolExecutor(n_parts) as pool:
        return list(pool.map(compute, range(n_parts)))


@pytest.mark.parametrize("slab", [None, 1])
@pytest.mark.parametrize("n_parts", [2, 3])
def test_parts_have_the_results_of_the_whole(n_parts, slab):
    case, parameters = charged((9, "triclinic"), (7, "cubic")), replace(MESH, slab=slab)
    charges, weights = channels(case)
    atoms = case.positions, case.cell, case.batch
    whole = channel_sums(charges, weights, *atoms, parameters)
    for k, part in enumerate(in_parts(channel_sums, n_parts, charges, weights, atoms, parameters)):
        assert_close(part.potential, whole.potential[k::n_parts], 0)
        assert_close(part.gradient, whole.gradient[k::n_parts], 1)
        assert_close(part.virial, whole.virial, 1)


@pytest.mark.parametrize("slab", [None, 1])
def test_meshes_of_parts_have_the_bits_of_the_whole(slab, device, dtype):
    """Charges on a mesh are integers, so their order does not matter."""
    case, parameters = charged((9, "triclinic"), (7, "cubic")), replace(MESH, slab=slab)
    charges, weights = (t.to(device) for t in channels(case))
    charges = charges.to(dtype)
    atoms = case.positions.to(device), case.cell.to(device), case.batch.int().to(device)
    whole = charge_channels.channel_sums(charges, weights, *atoms, parameters)
    found = in_parts(charge_channels.channel_sums, 2, charges, weights, atoms, parameters)
    for k, part in enumerate(found):
        if slab is None:
            assert torch.equal(part.potential, whole.potential[k::2])
            assert torch.equal(part.gradient, whole.gradient[k::2])
        assert_close(part.potential, whole.potential[k::2], 0, dtype)
        assert_close(part.gradient, whole.gradient[k::2], 1, dtype)
        assert_close(part.virial, whole.virial, 1, dtype, floor=1.0)


def test_charges_that_are_not_finite_are_noticed_by_all_parts(device):
    case = charged((9, "triclinic"))
    charges, weights = (t.to(device) for t in channels(case))
    charges[0, 1] = torch.nan
    atoms = case.positions.to(device), case.cell.to(device), case.batch.int().to(device)
    for part in in_parts(charge_channels.channel_sums, 2, charges, weights, atoms, MESH):
        assert part.potential[:, 1].isnan().all()
        assert part.potential[:, 0].isfinite().all()


@pytest.mark.gpu
@pytest.mark.parametrize("slab", [None, 1])
def test_can_be_captured(slab, device):
    case, parameters = charged((40, "triclinic")), replace(MESH, slab=slab)
    charges, weights = (t.to(device) for t in channels(case))
    atoms = case.positions.to(device), case.cell.to(device), case.batch.int().to(device)
    given = charges, weights, *atoms, parameters
    expected = charge_channels.channel_sums(*given)
    graph, found = record(lambda: charge_channels.channel_sums(*given), GraphPool())
    graph.replay()
    assert all(map(torch.equal, found, expected))
