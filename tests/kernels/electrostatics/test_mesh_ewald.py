from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from mlff_triton.errors import InputError
from mlff_triton.kernels.electrostatics import charge_mesh
from mlff_triton.kernels.electrostatics.arguments import system_pointers
from mlff_triton.kernels.electrostatics.mesh_ewald import mesh_ewald
from mlff_triton.kernels.electrostatics.moduli import moduli
from mlff_triton.kernels.electrostatics.reference import mesh_ewald as reference
from mlff_triton.kernels.electrostatics.reference.splines import spline_weights
from mlff_triton.testing import assert_close
from tests.kernels.electrostatics.cases import ANY_ORDER, MESH, all_gradients, charged


def assert_matches(case, parameters, dtype):
    """Assert that energies, potentials and gradients agree with the reference in float64."""
    charges = case.charges.to(dtype)
    found, gradients = all_gradients(mesh_ewald, charges, *case.atoms[1:], parameters)
    exact, truth = all_gradients(
        reference.mesh_ewald, charges.double(), *case.atoms[1:], parameters
    )
    assert found.energy.dtype is torch.float64
    assert found.potential.dtype is dtype
    scale = (case.charges.double() * exact.potential.detach()).abs().sum()
    assert_close(found.energy, exact.energy, 0, dtype, floor=float(scale))
    assert_close(found.potential, exact.potential, 0, dtype)
    for gradient, expected in zip(gradients, truth, strict=True):
        assert_close(gradient, expected, 1, dtype, floor=1.0)


@pytest.mark.parametrize("order", [4, 5, 6])
@pytest.mark.parametrize("mesh", [(8, 8, 8), (12, 16, 20), (20, 8, 36)])
def test_agrees_with_the_reference(order, mesh, device, dtype):
    case = charged((40, "triclinic"), net=1.0).to(device)
    assert_matches(case, replace(MESH, mesh=mesh, order=order), dtype)


@pytest.mark.parametrize(
    "structures", [[(1, "small")], [(63, "cubic"), (1, "cubic"), (20, "triclinic")]]
)
def test_batches_and_single_atoms(structures, device, dtype):
    assert_matches(charged(*structures, net=0.5).to(device), MESH, dtype)


def test_float32_positions(device):
    case = charged((30, "triclinic"), (9, "small")).to(device, torch.float32)
    atoms = case.charges, case.positions.float(), case.cell.float()
    found, gradients = all_gradients(mesh_ewald, *atoms, case.batch, MESH)
    exact, truth = all_gradients(
        reference.mesh_ewald, *(t.double() for t in atoms), case.batch, MESH
    )
    assert_close(found.potential, exact.potential, 0, torch.float32)
    for gradient, expected in zip(gradients, truth, strict=True):
        assert gradient.dtype is torch.float32
        assert_close(gradient, expected, 1, torch.float32)


def test_left_handed_cells(device, dtype):
    case = charged((20, "triclinic")).to(device)
    assert_matches(replace(case, cell=-case.cell), MESH, dtype)
    assert_matches(replace(case, cell=case.cell[:, [1, 0, 2]]), MESH, dtype)


def test_crowds(device, dtype):
    """More atoms lie in one bin than a product takes, and most bins are empty."""
    case = charged((70, "cubic")).to(device)
    fractions = 0.05 * torch.rand(70, 3, device=device, dtype=torch.float64) - 0.025
    assert_matches(replace(case, positions=fractions @ case.cell[0]), MESH, dtype)


def test_atoms_on_mesh_points_and_faces(device, dtype):
    case = charged((64, "cubic")).to(device)
    points = torch.cartesian_prod(*[torch.tensor([-1.0, 0.0, 0.5, 0.75])] * 3)
    assert_matches(replace(case, positions=points.to(case.cell) @ case.cell[0]), MESH, dtype)


def test_atoms_that_round_up_to_mesh_points(device, dtype):
    """A fused multiply-add of a GPU finds them 1e-16 below the point they are rounded to."""
    case = charged((27, "cubic")).to(device)
    cell = 9.312 * torch.eye(3, dtype=torch.float64, device=device)
    points = torch.cartesian_prod(*[3.104 * torch.arange(3.0, dtype=torch.float64)] * 3)
    moved = replace(case, positions=points.to(device), cell=cell[None])
    assert_matches(moved, replace(MESH, mesh=(24, 28, 32)), dtype)


def test_gradients_are_of_the_energy(device):
    case = charged((2, "triclinic"), (1, "cubic"), net=0.3).to(device)
    leaves = [t.requires_grad_() for t in case.atoms[:3]]
    parameters = replace(MESH, mesh=(8, 8, 8))

    def result(*leaves):
        return tuple(mesh_ewald(*leaves, case.batch, parameters))

    assert torch.autograd.gradcheck(result, leaves, atol=1e-6)
    assert torch.autograd.gradgradcheck(result, leaves, atol=1e-5, nondet_tol=ANY_ORDER)


def test_images_of_atoms_are_the_same(device):
    """Potentials have the same bits wherever atoms lie, if coordinates are exact."""
    case = charged((20, "cubic")).to(device)
    cell = 8 * torch.eye(3, dtype=torch.float64, device=device)[None]
    inside = torch.randint(0, 8 * 64, (20, 3), device=device).double() / 64
    results = [
        mesh_ewald(case.charges, inside + shift, cell, None, MESH) for shift in (0.0, 8.0, -800.0)
    ]
    for other in results[1:]:
        assert torch.equal(other.potential, results[0].potential)


def test_order_of_atoms_changes_only_rounding(device):
    case = charged((50, "triclinic")).to(device)
    shuffled = torch.randperm(50, device=device)
    first = mesh_ewald(*case.atoms, MESH)
    second = mesh_ewald(case.charges[shuffled], case.positions[shuffled], case.cell, None, MESH)
    assert_close(second.potential, first.potential[shuffled], 0)
    assert_close(second.energy, first.energy, 0)


def on_mesh(charges, batch, places):
    pointers = system_pointers(batch, len(places.planes))
    return charge_mesh.spread(charges, batch, pointers, places, MESH.mesh, MESH.order)


def test_meshes_have_the_same_bits_in_any_order_of_atoms(device, dtype):
    case = charged((200, "triclinic"), (12, "cubic")).to(device, dtype)

    def mesh(order):
        charges, positions, batch = (t[order] for t in (case.charges, case.positions, case.batch))
        places = charge_mesh.locate(positions, case.cell, batch, MESH.mesh, dtype)
        return on_mesh(charges, batch, places)

    shuffled = torch.cat([torch.randperm(200), 200 + torch.randperm(12)]).to(device)
    assert torch.equal(mesh(torch.arange(212, device=device)), mesh(shuffled))


@pytest.mark.parametrize("size", [0.0, 1e-30, 1e9])
def test_charges_of_any_size_have_a_mesh(size, device):
    case = charged((20, "cubic")).to(device)
    places = charge_mesh.locate(case.positions, case.cell, case.batch, MESH.mesh, torch.float64)
    first, other = (on_mesh(q, case.batch, places) for q in (case.charges, size * case.charges))
    assert_close(other, size * first, 0)


def test_charges_on_the_mesh_add_up(device, dtype):
    case = charged((30, "triclinic"), (12, "cubic"), net=2.0).to(device, dtype)
    places = charge_mesh.locate(case.positions, case.cell, case.batch, MESH.mesh, dtype)
    mesh = on_mesh(case.charges, case.batch, places)
    totals = torch.zeros(2, dtype=torch.float64).index_add(
        0, case.batch.cpu(), case.charges.double().cpu()
    )
    assert_close(mesh.double().sum((1, 2, 3)), totals, 0, dtype)


def test_no_atoms(device, dtype):
    case = charged((3, "cubic")).to(device, dtype)
    charges, positions, _, batch = (t[:0] for t in case.atoms)
    found = mesh_ewald(charges, positions, case.cell, batch, MESH)
    assert found.energy.tolist() == [0.0]
    assert found.potential.shape == (0,)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 1e12])
def test_values_that_are_lost_are_not_a_number(value, device, dtype):
    case = charged((20, "cubic")).to(device, dtype)
    for k in range(3):
        if k != 1 and value == 1e12:
            continue
        atoms = [t.clone() for t in case.atoms]
        atoms[k].view(-1)[4] = value
        with np.errstate(invalid="ignore"):  # of the interpreter
            assert mesh_ewald(*atoms, MESH).energy.isnan().all()


def test_registered_completely(device):
    case = charged((4, "cubic")).to(device)
    leaves = [t.requires_grad_() for t in case.atoms[:3]]
    arguments = *leaves, case.batch, 0.8, [8, 8, 8], 5
    torch.library.opcheck(torch.ops.mlff_triton.mesh_ewald, arguments)


def test_refuses_meshes_beyond_integers(device):
    case = charged((4, "cubic")).to(device)
    with pytest.raises(InputError, match=r"meshes of .* points are too many: divide the batch"):
        mesh_ewald(*case.atoms, replace(MESH, mesh=(1400, 1400, 1400)))


@pytest.mark.parametrize("order", [4, 5, 6])
def test_splines_add_up_and_have_moduli(order):
    fractions = torch.linspace(0, 1, 9, dtype=torch.float64)
    weights = spline_weights(fractions, order)
    assert (weights >= 0).all()
    assert_close(weights.sum(1), torch.ones(9), 0)
    for size in (8, 12):
        factors = moduli(size, order, torch.device("cpu"))
        assert_close(factors[0], torch.tensor(1.0), 0)
        assert factors[size // 2] == 0.0
        assert_close(factors[1:], factors[1:].flip(0), 0)
