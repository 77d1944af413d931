"""Sums over pairs of two sets of charges: kernels and loops against the reference, and autograd."""

from __future__ import annotations

import math

import pytest
import torch

from mlff_triton.kernels.electrostatics import cross_pairs
from mlff_triton.kernels.electrostatics.cpu import cross_pairs as loops
from mlff_triton.kernels.electrostatics.reference import cross_pairs as reference
from mlff_triton.kernels.electrostatics.types import COULOMB, PairTerms
from mlff_triton.testing import assert_close

CELL = torch.tensor([[9.4, 0, 0], [2.1, 9.6, 0], [-3.1, 2.9, 9.3]], dtype=torch.float64)
TERMS = {
    "bare": PairTerms(math.inf),
    "damped": PairTerms(math.inf, damping=0.8),
    "reaction field": PairTerms(4.0, curvature=0.008, shift=0.37),
    "damped reaction field": PairTerms(4.0, curvature=0.008, shift=0.37, damping=0.8),
    "Ewald": PairTerms(4.5, splitting=0.7),
    "damped Ewald": PairTerms(4.5, splitting=0.7, damping=0.8),
}


def charges_at(n_points: int, n_sites: int) -> tuple[torch.Tensor, ...]:
    """Return points and charges there, and sites and charges there, in different images."""
    torch.manual_seed(n_points + n_sites)
    points, sites = (torch.rand(n, 3).double() @ CELL for n in (n_points, n_sites))
    sites = sites + torch.randint(-2, 3, (n_sites, 3)).double() @ CELL
    return points, torch.rand(n_points).double() - 0.4, sites, torch.rand(n_sites).double() - 0.4


@pytest.fixture(params=["kernels", "loops"])
def operators(request, device):
    """Return operators, and the device on which they run."""
    return (cross_pairs, device) if request.param == "kernels" else (loops, "cpu")


@pytest.mark.parametrize(
    "sizes",
    [
        *((1, 1), (3, 130), (17, 63), (2, 1500), (40, 2)),
        pytest.param((300, 2), marks=pytest.mark.gpu),
    ],
    ids=str,
)
@pytest.mark.parametrize("is_periodic", [True, False])
@pytest.mark.parametrize("name", TERMS)
def test_agrees_with_the_reference(operators, name, is_periodic, sizes):
    found, place = operators
    points, charges, sites, site_charges = charges_at(*sizes)
    box, terms = (CELL if is_periodic else None), TERMS[name]
    at_place = [t.to(place) for t in (points, sites, site_charges)]
    box_there = None if box is None else box.to(place)
    expected = reference.potentials_at(points, sites, site_charges, box, terms)
    for value, exact in zip(
        found.potentials_at(*at_place, box_there, terms), expected, strict=True
    ):
        assert_close(value, exact, 1, floor=1e-3)
    exact = reference.gradients_of(points, charges, sites, box, terms)
    given = at_place[0], charges.to(place), at_place[1], box_there, terms
    assert_close(found.gradients_of(*given), exact, 1, floor=1e-3)


@pytest.mark.parametrize("is_periodic", [True, False])
@pytest.mark.parametrize("name", TERMS)
def test_gradients_are_derivatives_of_the_energy(name, is_periodic):
    points, charges, sites, site_charges = charges_at(5, 40)
    box, leaves = (CELL if is_periodic else None), [points.clone(), sites.clone()]
    vectors = reference.nearest_images(
        leaves[0].requires_grad_()[:, None] - leaves[1].requires_grad_(), box
    )
    distance = vectors.norm(dim=2)
    values, _ = reference.pair_energy(distance, TERMS[name])
    pairs = COULOMB * charges[:, None] * site_charges * values
    energy = torch.where(distance < TERMS[name].cutoff, pairs, 0.0).sum()
    by_point, by_site = torch.autograd.grad(energy, leaves)
    given = box, TERMS[name]
    potential, slopes = reference.potentials_at(points, sites, site_charges, *given)
    assert_close(charges @ potential, energy.detach(), 0)
    assert_close(charges[:, None] * slopes, by_point, 1)
    gradient = reference.gradients_of(points, charges, sites, *given)
    assert_close(site_charges[:, None] * gradient, by_site, 1)


def test_reference_in_chunks(monkeypatch):
    points, charges, sites, site_charges = charges_at(9, 40)
    given = sites, site_charges, CELL, TERMS["damped Ewald"]
    whole = reference.potentials_at(points, *given)
    by_site = reference.gradients_of(points, charges, sites, *given[2:])
    monkeypatch.setattr(reference, "CHUNK", 80)
    for value, exact in zip(reference.potentials_at(points, *given), whole, strict=True):
        assert_close(value, exact, 1)
    assert_close(reference.gradients_of(points, charges, sites, *given[2:]), by_site, 1)


def test_nan_is_passed_on(operators):
    found, place = operators
    points, charges, sites, site_charges = (t.to(place) for t in charges_at(3, 130))
    sites[7, 1] = math.nan
    given = CELL.to(place), TERMS["Ewald"]
    for value in found.potentials_at(points, sites, site_charges, *given):
        assert value.isnan().all()
    assert found.gradients_of(points, charges, sites, *given).isnan().any(1).nonzero().tolist() == [
        [7]
    ]


def test_bits_are_the_same_again(operators):
    found, place = operators
    points, charges, sites, site_charges = (t.to(place) for t in charges_at(70, 1500))
    given = CELL.to(place), TERMS["Ewald"]
    first, again = (found.potentials_at(points, sites, site_charges, *given) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    both = [found.gradients_of(points, charges, sites, *given) for _ in range(2)]
    assert torch.equal(*both)


def test_no_charges(operators):
    found, place = operators
    points, charges, sites, site_charges = (t.to(place) for t in charges_at(3, 4))
    given = None, TERMS["bare"]
    potential, gradient = found.potentials_at(points, sites[:0], site_charges[:0], *given)
    assert potential.tolist() == [0] * 3
    assert not gradient.any()
    assert found.gradients_of(points[:0], charges[:0], sites, *given).tolist() == [[0] * 3] * 4
