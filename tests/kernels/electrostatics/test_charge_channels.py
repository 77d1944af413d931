"""Meshes of several charges per atom, against as many single ones."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

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
from mlff_triton.kernels.electrostatics.types import Electrostatics
from mlff_triton.testing import assert_close
from tests.kernels.electrostatics.cases import MESH, Charged, charged

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
