"""Potentials of meshes at other points: kernels and loops against the reference, and autograd."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from mlff_triton.kernels.electrostatics import operators as kernels
from mlff_triton.kernels.electrostatics.cpu import operators as loops
from mlff_triton.kernels.electrostatics.reference import operators as reference
from mlff_triton.kernels.electrostatics.reference.mesh_ewald import mesh_ewald
from mlff_triton.kernels.electrostatics.types import COULOMB
from mlff_triton.testing import assert_close
from tests.kernels.electrostatics.cases import MESH, charged


def field_of(operators, place, case, points, parameters):
    """Return values and gradients of the case's charges at points."""
    charges, positions, cell = (t.to(place) for t in case.atoms[:3])
    found = operators.mesh_places(positions, cell, parameters)
    mesh = operators.mesh_potential(charges, found, cell, parameters)
    others = operators.mesh_places(points.to(place), cell, parameters)
    return operators.mesh_values(mesh, others, parameters)


@pytest.fixture(params=["kernels", "loops"])
def operators(request, device):
    """Return operators, and the device on which they run."""
    return (kernels, device) if request.param == "kernels" else (loops, "cpu")


@pytest.mark.parametrize("order", [4, 5, 6])
@pytest.mark.parametrize("mesh", [(8, 8, 8), (12, 16, 20), (20, 8, 36)])
def test_agrees_with_the_reference(operators, order, mesh):
    case, parameters = charged((40, "triclinic"), net=1.0), replace(MESH, mesh=mesh, order=order)
    points = 2.7 * charged((9, "triclinic")).positions
    expected = field_of(reference, "cpu", case, points, parameters)
    for value, exact in zip(field_of(*operators, case, points, parameters), expected, strict=True):
        assert_close(value, exact, 1)


@pytest.mark.parametrize("n_atoms", [1, 63, 500])
def test_sizes(operators, n_atoms):
    case = charged((n_atoms, "cubic"), net=0.4)
    points = charged((1, "cubic")).positions + 0.3
    expected = field_of(reference, "cpu", case, points, MESH)
    for value, exact in zip(field_of(*operators, case, points, MESH), expected, strict=True):
        assert_close(value, exact, 1)


@pytest.mark.parametrize("order", [4, 5, 6])
def test_at_the_charges_it_is_the_potential_of_the_sum(order):
    """Gradients are those of the energy, which each charge is in twice."""
    case, parameters = charged((30, "triclinic"), net=1.0), replace(MESH, order=order)
    positions = case.positions.clone().requires_grad_()
    exact = mesh_ewald(case.charges, positions, case.cell, None, parameters)
    (gradient,) = torch.autograd.grad(exact.energy.sum(), positions)
    values, slopes = field_of(reference, "cpu", case, case.positions, parameters)
    own = 2 * COULOMB * parameters.splitting / math.sqrt(math.pi) * case.charges
    assert_close(values - own, exact.potential.detach(), 0)
    assert_close(case.charges[:, None] * slopes, gradient, 1)


def test_cells_may_change(operators):
    """Influence functions, which loops keep, are those of the cell."""
    case = charged((20, "triclinic"))
    for scale in (1.0, 1.1, 1.0, 0.9):
        scaled = replace(case, cell=scale * case.cell)
        expected = field_of(reference, "cpu", scaled, case.positions, MESH)
        found = field_of(*operators, scaled, case.positions, MESH)
        assert_close(found[0], expected[0], 1)


def test_nan_is_passed_on(operators):
    case = charged((20, "triclinic"))
    points = case.positions.clone()
    points[3, 1] = math.nan
    values, gradients = field_of(*operators, case, points, MESH)
    assert values.isnan().nonzero().tolist() == [[3]]
    assert gradients.isnan().any(1).nonzero().tolist() == [[3]]
    lost = replace(case, positions=points)
    assert field_of(*operators, lost, case.positions, MESH)[0].isnan().all()


def test_bits_are_the_same_again(operators):
    case = charged((300, "cubic"))
    first, again = (field_of(*operators, case, case.positions, MESH) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
