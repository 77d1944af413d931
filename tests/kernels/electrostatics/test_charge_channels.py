"""Meshes of several charges per atom, against as many single ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mlff_triton._common.cuda_graphs import GraphPool, record
from mlff_triton.kernels.electrostatics import charge_channels
from mlff_triton.kernels.electrostatics.reference.charge_channels import (
    channel_potentials,
    channel_sums,
)
from mlff_triton.kernels.electrostatics.reference.mesh_ewald import mesh_ewald
from mlff_triton.testing import assert_close
from tests.kernels.electrostatics.cases import MESH, Charged, charged

CHANNELS = 3


def channels(case: Charged) -> tuple[torch.Tensor, torch.Tensor]:
    """Return charges [N, 3], which need not be neutral, and weights [3]."""
    torch.manual_seed(len(case.charges))
    charges = torch.rand(len(case.charges), CHANNELS).double() - 0.4
    return charges, torch.tensor([0.7, -0.2, 1.3]).double()


def truth(case: Charged, charges, weights, parameters) -> tuple[torch.Tensor, ...]:
    """Return potentials, gradients and virials, from one mesh per kind of charge."""
    leaves = [t.clone().requires_grad_() for t in (case.positions, case.cell)]
    found = [
        mesh_ewald(charges[:, c], *leaves, case.batch, parameters) for c in range(len(weights))
    ]
    energies = torch.stack([each.energy for each in found], dim=1)
    gradient, by_cell = torch.autograd.grad((energies @ weights).sum(), leaves)
    outer = case.positions[:, :, None] * gradient[:, None]
    virial = torch.zeros_like(case.cell).index_add(0, case.batch, outer) + case.cell.mT @ by_cell
    return torch.stack([each.potential.detach() for each in found], dim=1), gradient, virial


@pytest.mark.parametrize("order", [4, 5, 6])
@pytest.mark.parametrize(
    "structures", [[(9, "triclinic")], [(1, "small")], [(7, "cubic"), (1, "cubic"), (20, "small")]]
)
def test_agrees_with_single_meshes(structures, order):
    case, parameters = charged(*structures), replace(MESH, order=order)
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
def test_kernels_agree_with_the_reference(structures, device, dtype):
    case = charged(*structures)
    charges, weights = channels(case)
    charges = charges.to(dtype)
    expected = channel_sums(charges.double(), weights, *case.atoms[1:], MESH)
    atoms = case.positions.to(device), case.cell.to(device), case.batch.int().to(device)
    found = charge_channels.channel_sums(charges.to(device), weights.to(device), *atoms, MESH)
    assert found.potential.dtype is dtype
    for value, exact, degree in zip(found, expected, (0, 1, 1), strict=True):
        assert_close(value.cpu(), exact, degree, dtype, floor=1.0)
    again = charge_channels.channel_sums(charges.to(device), weights.to(device), *atoms, MESH)
    assert all(map(torch.equal, found, again))


@pytest.mark.gpu
def test_can_be_captured(device):
    case = charged((40, "triclinic"))
    charges, weights = (t.to(device) for t in channels(case))
    atoms = case.positions.to(device), case.cell.to(device), case.batch.int().to(device)
    expected = charge_channels.channel_sums(charges, weights, *atoms, MESH)
    graph, found = record(
        lambda: charge_channels.channel_sums(charges, weights, *atoms, MESH), GraphPool()
    )
    graph.replay()
    assert all(map(torch.equal, found, expected))
