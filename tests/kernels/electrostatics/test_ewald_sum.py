from __future__ import annotations

import math

import pytest
import torch

from mlff_triton.errors import InputError
from mlff_triton.kernels.electrostatics.reference.ewald_sum import ewald_sum
from mlff_triton.kernels.electrostatics.types import COULOMB
from mlff_triton.testing import assert_close, assert_within
from tests.kernels.electrostatics.cases import all_gradients, charged

FACES = [[0.0, 0.0, 0.0], [0.0, 0.5, 0.5], [0.5, 0.0, 0.5], [0.5, 0.5, 0.0]]
BODY = [[0.0, 0.0, 0.0]]
MADELUNG = {  # sites of cations, vector to an anion, its length, and the constant for this length
    "rock salt": (FACES, [0.5, 0.0, 0.0], 0.5, 1.7475645946),
    "cesium chloride": (BODY, [0.5, 0.5, 0.5], math.sqrt(3) / 2, 1.7626747731),
    "zinc blende": (FACES, [0.25, 0.25, 0.25], math.sqrt(3) / 4, 1.6380550534),
}


@pytest.mark.parametrize("crystal", MADELUNG)
@pytest.mark.parametrize("length", [1.0, 5.64])
def test_madelung_constants(crystal, length):
    sites, step, distance, constant = MADELUNG[crystal]
    cations = length * torch.tensor(sites, dtype=torch.float64)
    positions = torch.cat([cations, cations + length * torch.tensor(step)])
    charges = torch.cat([torch.ones(len(sites)), -torch.ones(len(sites))])
    found = ewald_sum(charges, positions, length * torch.eye(3).double()[None])
    expected = -COULOMB * constant * len(sites) / (distance * length)
    assert_within(found.energy, [expected], 1e-9)
    per_atom = found.potential * charges
    assert_within(per_atom, per_atom[:1].expand(len(charges)), 1e-9)


def test_charge_in_its_background():
    """The energy of a simple cubic lattice of charges, as in corrections of finite size."""
    found = ewald_sum(torch.ones(1), torch.rand(1, 3), 7.0 * torch.eye(3)[None])
    assert_within(found.energy, [-COULOMB * 2.837297479 / 2 / 7.0], 1e-9)


@pytest.mark.parametrize("net", [0.0, 3.0])
@pytest.mark.parametrize("kind", ["cubic", "triclinic", "small"])
@pytest.mark.parametrize("slab", [None, 1])
def test_splitting_does_not_matter(kind, net, slab):
    case = charged((20, kind), net=net)
    results = [
        all_gradients(lambda *a, s=s: ewald_sum(*a, splitting=s, slab=slab), *case.atoms)
        for s in (None, 0.4, 0.9)
    ]
    (truth, gradients), *others = results
    for found, found_gradients in others:
        assert_close(found.energy, truth.energy, 0)
        assert_close(found.potential, truth.potential, 0)
        for gradient, expected in zip(found_gradients, gradients, strict=True):
            assert_close(gradient, expected, 1)


def test_derivatives():
    case = charged((4, "triclinic"), net=0.5)
    leaves = [t.requires_grad_() for t in (case.charges, case.positions, case.cell)]
    for slab in (None, 2):

        def energy(*atoms, slab=slab):
            return ewald_sum(*atoms, error=1e-14, slab=slab).energy

        assert torch.autograd.gradcheck(energy, leaves, atol=1e-6)
        (by_charge,) = torch.autograd.grad(energy(*leaves).sum(), leaves[0])
        assert_close(by_charge, ewald_sum(*leaves, slab=slab).potential, 0)


def test_virial_is_the_energy_without_other_lengths():
    """Coulomb's law has no length: the pressure of charges is their energy over three volumes."""
    case = charged((30, "triclinic"))
    found, (_, by_position, by_cell) = all_gradients(ewald_sum, *case.atoms)
    virial = case.positions.T @ by_position + case.cell[0].T @ by_cell[0]
    assert_close(virial.trace() / 0.5, -found.energy[0], 1)
    assert_close(virial, virial.T, 1)


def test_systems_of_a_batch_are_apart():
    case = charged((5, "cubic"), (9, "small"), (1, "triclinic"))
    together = ewald_sum(*case.atoms)
    for system in range(3):
        own = case.batch == system
        alone = ewald_sum(case.charges[own], case.positions[own], case.cell[system, None])
        assert_close(together.energy[system, None], alone.energy, 0, floor=1.0)
        assert_close(together.potential[own], alone.potential, 0, floor=1.0)


@pytest.mark.parametrize("net", [0.0, 1.0])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_slabs_do_not_see_their_images(axis, net):
    """With the correction, the height of the vacuum does not matter; without it, it does."""
    case = charged((8, "cubic"), net=net)
    inside = case.positions @ torch.linalg.inv(case.cell[0])
    inside = (inside - inside.floor()) @ case.cell[0]
    energies = {}
    for gap in (4.0, 8.0):
        cell = case.cell.clone()
        cell[0, axis] *= gap
        cell[0, axis] += 0.2 * cell[0, axis - 1]
        for slab in (None, axis):
            forces = all_gradients(
                lambda *a, s=slab: ewald_sum(*a, slab=s), case.charges, inside, cell
            )
            energies[gap, slab] = forces[0].energy, forces[1][1]
    assert_within(energies[4.0, axis][1], energies[8.0, axis][1], 1e-6)
    assert_within(energies[4.0, axis][0], energies[8.0, axis][0], 1e-6)
    assert abs(energies[4.0, None][0] - energies[8.0, None][0]) > 1e-3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"charges": torch.tensor([1.0, torch.nan])}, "the charge of atom 1 is NaN or infinite"),
        ({"positions": torch.full((2, 3), torch.inf)}, "the position of atom 0 is NaN or infinite"),
        ({"cell": torch.zeros(1, 3, 3)}, "the cell of system 0 has no volume"),
        ({"cell": torch.eye(3).repeat(2, 1, 1)}, "there are 2 cells, and no batch"),
        ({"batch": torch.tensor([0, 1])}, "batch must ascend, from 0 to at most 0"),
    ],
)
def test_refuses_values_without_a_meaning(change, message):
    atoms = {"charges": torch.ones(2), "positions": torch.rand(2, 3), "cell": torch.eye(3)[None]}
    with pytest.raises(InputError, match=message):
        ewald_sum(**(atoms | change))


def test_refuses_splittings_that_are_not_positive():
    with pytest.raises(InputError, match="splitting must be positive"):
        ewald_sum(torch.ones(1), torch.zeros(1, 3), torch.eye(3)[None], splitting=-1.0)
