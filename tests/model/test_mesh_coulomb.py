"""Particle-mesh Ewald in TensorNet2: derivatives, direct Ewald sums, limits of large cells."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from ase import Atoms

from mlff_triton import Ensemble, TensorNet2, neighbor_list, predict
from mlff_triton.errors import InputError
from mlff_triton.kernels.electrostatics.reference.ewald_sum import ewald_sum
from mlff_triton.model.config import TensorNetConfig
from mlff_triton.model.coulomb import COULOMB, coulomb_energy, ewald_energy
from mlff_triton.model.mesh_coulomb import UNIT
from mlff_triton.model.tensornet import TensorNet
from mlff_triton.model.tensornet2 import PME_CUTOFF, PME_ERROR, with_coulomb
from mlff_triton.neighbors.box import Box
from mlff_triton.testing import (
    assert_within,
    finite_difference_forces,
    finite_strain_stress,
    random_cluster,
    random_crystal,
    random_rotation,
)
from tests.model.test_tensornet import energy, evaluate, moved
from tests.support.charged import SCALE, charged_model

EXACT = {"coulomb_cutoff": 6.0, "pme_error": 1e-7}
ROUGH = {"coulomb_cutoff": 6.0, "pme_error": 1e-4}
VARIANTS = {
    "one layer": EXACT,
    "SO(3), two layers, repulsion": {"group": "SO(3)", "num_layers": 2, "repulsion": True, **ROUGH},
    "beyond the Coulomb cutoff": {"coulomb_cutoff": 4.7, "cutoff_upper": 5.0, "pme_error": 1e-4},
}
CASES = [*zip(VARIANTS, (0.0, -1.0, 1.0), strict=True)]
CRYSTAL = random_crystal(3, "triclinic", seed=2)
SMALL = random_crystal(2, "small", seed=3)
WIDE_SIZE = 300
WIDE = random_crystal(WIDE_SIZE, "cubic", seed=4)
SLAB = random_crystal(5, "slab", seed=5)
MADELUNG = 2.837297479
"""Of a simple cubic lattice of point charges in a neutralizing background."""


@pytest.mark.parametrize(("variant", "charge"), CASES)
def test_forces_are_minus_the_energys_derivative(variant, charge):
    check_forces(charged_model(**VARIANTS[variant]), CRYSTAL, charge)


@pytest.mark.parametrize("charge", [0.0, 1.0])
def test_forces_on_slabs_are_minus_the_energys_derivative(charge):
    check_forces(charged_model(**ROUGH), SLAB, charge)


def check_forces(model: TensorNet2, atoms: Atoms, charge: float) -> None:
    """Compare forces with finite differences of the energy."""

    def value(atoms: Atoms) -> float:
        return evaluate(model, atoms, charge=[charge]).energy.item()

    found = evaluate(model, atoms, charge=[charge]).forces
    expected = finite_difference_forces(value, atoms)
    assert_within(found, expected, 1e-6, floor=1.0)


@pytest.mark.parametrize(("variant", "charge"), CASES)
def test_virial_is_the_energys_derivative_by_strain(variant, charge):
    model = charged_model(**VARIANTS[variant])

    def value(atoms: Atoms) -> float:
        return evaluate(model, atoms, charge=[charge]).energy.item()

    virial = evaluate(model, CRYSTAL, charge=[charge]).virial[0]
    expected = finite_strain_stress(value, CRYSTAL)
    voigt = virial.flatten()[[0, 4, 8, 5, 2, 1]]
    assert_within(voigt, expected * CRYSTAL.get_volume(), 1e-6, floor=len(CRYSTAL))


@pytest.mark.parametrize("charge", [0.0, 1.0])
def test_virials_of_slabs_are_the_energys_derivative_by_strain(charge):
    """The energy does not depend on the vector across the slab, up to the error of the mesh."""
    model = charged_model(coulomb_cutoff=6.0, pme_error=1e-6)

    def value(atoms: Atoms) -> float:
        return evaluate(model, atoms, charge=[charge]).energy.item()

    virial = evaluate(model, SLAB, charge=[charge]).virial[0]
    expected = finite_strain_stress(value, SLAB) * SLAB.get_volume()
    assert_within(virial.flatten()[[0, 4, 8, 5, 2, 1]], expected, 1e-6, floor=1.0)


@pytest.mark.parametrize("charge", [0.0, -2.0])
@pytest.mark.parametrize("kind", ["cubic", "slab"])
def test_agrees_with_a_direct_ewald_sum(kind, charge):
    """The partial charges are known where each atom has one, after the last layer."""
    model = charged_model(charge_channels=1, **EXACT)
    model.charge_weights = torch.tensor([[0.0], [1.0]]).double()
    atoms = random_crystal(WIDE_SIZE, kind, seed=4)
    by_mesh = evaluate(model, atoms, charge=[charge])
    by_field = evaluate(with_coulomb(model, "reaction-field"), atoms, charge=[charge])
    assert_within(by_mesh.charges, by_field.charges, 1e-12)

    q, points = by_mesh.charges, torch.from_numpy(atoms.positions)
    cell, slab = torch.from_numpy(atoms.cell.array)[None], None
    if kind == "slab":
        cell, slab = cell.clone(), 2
        cell[0, 2] *= 4  # with a gap of three times its height
    everything = UNIT * ewald_sum(q, points, cell, None, slab=slab).energy.item()
    graph = neighbor_list(atoms.positions, 6.0, atoms.cell.array, atoms.pbc)
    distance = torch.linalg.vector_norm(graph.vectors(points, cell, None), dim=1)
    products = 0.5 * q[graph.receivers] * q[graph.senders]
    damped = (products * (coulomb_energy(distance, None) - COULOMB / distance)).sum().item()
    within = (products * coulomb_energy(distance, 6.0)).sum().item()
    expected = SCALE * (everything + damped - within)
    assert abs(expected) > 1.0
    assert (by_mesh.energy - by_field.energy).item() == pytest.approx(expected, rel=1e-6)


def test_slabs_may_be_anywhere_across_their_plane():
    model, other = charged_model(**EXACT), SLAB.copy()
    one = evaluate(model, SLAB, charge=[1.0])
    other.positions += 47.3 * SLAB.cell.array[2]
    other.set_cell(SLAB.cell.array * [[1], [1], [0.1]])
    again = evaluate(model, other, charge=[1.0])
    assert_within(again.energy, one.energy, 1e-6)
    assert_within(again.forces, one.forces, 1e-6, floor=1.0)


def test_slabs_have_no_dipole_in_their_images():
    """In periodic cells of any gap, a polar slab differs from one alone by the field of dipoles."""
    model, gaps = charged_model(**EXACT), []
    alone = evaluate(model, SLAB).energy
    for height in (40.0, 80.0):
        atoms = SLAB.copy()
        atoms.set_cell(SLAB.cell.array * [[1], [1], [height / SLAB.cell.lengths()[2]]])
        atoms.pbc = True
        gaps.append(float(evaluate(model, atoms).energy - alone))
    assert abs(gaps[0]) > 1e-3
    assert gaps[0] / gaps[1] == pytest.approx(2, rel=1e-3)


def test_errors_of_forces_are_those_asked_for():
    model = charged_model(**EXACT)
    truth = evaluate(model, WIDE).forces
    without = evaluate(with_coulomb(model, "reaction-field", 5.0), WIDE).forces
    scale = (truth - without).norm()
    errors = []
    for error in (1e-2, 1e-3, 1e-4):
        found = evaluate(with_coulomb(model, "pme", pme_error=error), WIDE).forces
        errors.append(float((found - truth).norm() / truth.norm()))
        assert errors[-1] < 3 * error
    assert scale > 10 * (truth.norm() * errors[-1])
    assert all(coarse > 2 * fine for coarse, fine in pairwise(errors))


def in_box(atoms: Atoms, length: float) -> Atoms:
    return Atoms(atoms.numbers, atoms.positions, cell=[length] * 3, pbc=True)


def test_large_boxes_approach_all_pairs_as_the_inverse_volume():
    atoms = random_cluster(6, seed=3)
    model = charged_model(coulomb_cutoff=9.0, pme_error=1e-5)
    vacuum = energy(with_coulomb(model, "all-pairs"), atoms)
    gaps = [energy(model, in_box(atoms, length)) - vacuum for length in (24.0, 48.0)]
    assert 1e-4 < abs(gaps[0]) < 1.0
    assert gaps[0] / gaps[1] == pytest.approx(8, rel=0.1)


@pytest.mark.parametrize("charge", [1.0, -2.0])
def test_charged_boxes_have_the_energy_of_a_lattice_in_a_background(charge):
    atoms = random_cluster(6, seed=3)
    model = charged_model(coulomb_cutoff=9.0, pme_error=1e-5)
    vacuum = evaluate(with_coulomb(model, "all-pairs"), atoms, charge=[charge])
    length = 48.0
    found = evaluate(model, in_box(atoms, length), charge=[charge])
    gap = (found.energy - vacuum.energy).item()
    assert gap == pytest.approx(-SCALE * COULOMB * MADELUNG * charge**2 / (2 * length), rel=0.05)
    assert_within(found.forces, vacuum.forces, 2e-2)


def test_images_rotations_and_supercells_are_the_same(rng):
    model, other = charged_model(**EXACT), SMALL.copy()
    one = evaluate(model, SMALL)
    other.positions += rng.integers(-3, 4, size=(2, 3)) @ SMALL.cell.array
    again = evaluate(model, other)
    assert_within(again.energy, one.energy, 1e-10)
    assert_within(again.forces, one.forces, 1e-9, floor=1.0)
    assert_within(again.virial, one.virial, 1e-9, floor=1.0)
    turned = evaluate(model, moved(SMALL, random_rotation(rng)))
    assert_within(turned.energy, one.energy, 1e-10)
    three = evaluate(model, SMALL.repeat((3, 1, 1)))
    mean = float(model.mean)
    assert_within(three.energy - mean, 3 * (one.energy - mean), 1e-5)
    assert_within(three.forces, one.forces.repeat(3, 1), 1e-5, floor=1.0)


def test_batches_and_ensembles():
    model = charged_model(**EXACT)
    images, charges = [CRYSTAL, SMALL, random_crystal(9, "cubic", seed=8)], [0.0, 1.0, -1.0]
    together = evaluate(model, *images, charge=charges)
    alone = [evaluate(model, a, charge=[q]) for a, q in zip(images, charges, strict=True)]
    assert_within(together.energy, torch.cat([p.energy for p in alone]), 1e-6, floor=1.0)
    assert_within(together.forces, torch.cat([p.forces for p in alone]), 1e-6, floor=1.0)
    assert_within(together.virial, torch.cat([p.virial for p in alone]), 1e-6, floor=1.0)

    field = charged_model(seed=1, coulomb_cutoff=2.3)
    mixed = evaluate(Ensemble([model, field]), CRYSTAL)
    members = [evaluate(member, CRYSTAL) for member in (model, field)]
    for name in ("energy", "forces", "virial"):
        expected = (getattr(members[0], name) + getattr(members[1], name)) / 2
        assert_within(getattr(mixed, name), expected, 1e-10, floor=1.0)


def test_forces_have_derivatives_by_weights_positions_and_cells():
    model = charged_model(**EXACT)
    weight = model.get_parameter("charges.1.linears.2.weight")
    graph = neighbor_list(CRYSTAL.positions, model.cutoff, CRYSTAL.cell.array, True)
    numbers = torch.from_numpy(CRYSTAL.numbers)
    leaves = [torch.from_numpy(a).clone() for a in (CRYSTAL.positions, CRYSTAL.cell.array[None])]
    probe = torch.from_numpy(np.random.default_rng(0).normal(size=CRYSTAL.positions.shape))

    def value(create_graph: bool) -> torch.Tensor:
        positions, cell = leaves
        found = predict(model, numbers, positions, graph, cell=cell, create_graph=create_graph)
        return (found.forces * probe).sum() + found.virial.sum()

    targets = [weight, *leaves]
    for target in leaves:
        target.requires_grad_()
    gradients = torch.autograd.grad(value(create_graph=True), targets)
    for target, gradient in zip(targets, gradients, strict=True):
        direction, step = torch.randn_like(target), 1e-5
        with torch.no_grad():
            target.add_(direction, alpha=step)
            above = value(create_graph=False)
            target.add_(direction, alpha=-2 * step)
            below = value(create_graph=False)
            target.add_(direction, alpha=step)
        expected = (above - below).item() / (2 * step)
        assert (gradient * direction).sum().item() == pytest.approx(expected, rel=1e-5, abs=1e-4)


@pytest.mark.parametrize("by", ["positions", "cell"])
def test_second_derivatives_of_either_positions_or_cells(by):
    model = charged_model(**EXACT).requires_grad_(False)
    graph = neighbor_list(CRYSTAL.positions, model.cutoff, CRYSTAL.cell.array, True)
    numbers = torch.from_numpy(CRYSTAL.numbers)
    given = {
        "positions": torch.from_numpy(CRYSTAL.positions).clone(),
        "cell": torch.from_numpy(CRYSTAL.cell.array[None]).clone(),
    }
    given[by].requires_grad_()

    def force() -> torch.Tensor:
        found = predict(model, numbers, graph=graph, create_graph=True, **given)
        return found.forces[0, 0]

    (gradient,) = torch.autograd.grad(force(), given[by])
    flat, step = given[by].detach().view(-1), 1e-5
    values = []
    for sign in (1, -1):
        flat[4] += sign * step
        values.append(force().item())
        flat[4] -= sign * step
    expected = (values[0] - values[1]) / (2 * step)
    assert gradient.flatten()[4].item() == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_pairs_and_waves_together_are_the_damped_energy():
    distance = torch.linspace(0.3, 9.0, 50).double()
    waves = COULOMB * torch.erf(0.4 * distance) / distance
    assert_within(ewald_energy(distance, 0.4) + waves, coulomb_energy(distance, None), 1e-12)


def test_kind_of_energy_can_be_changed():
    everything = charged_model()
    found = [
        with_coulomb(everything, "pme"),
        with_coulomb(everything, "pme", 12.0, 1e-5),
        with_coulomb(everything, coulomb_cutoff=5.0),
        with_coulomb(with_coulomb(everything, "pme", 7.0), coulomb_cutoff=8.0),
        with_coulomb(with_coulomb(everything, "pme", 7.0), "reaction-field"),
        with_coulomb(with_coulomb(everything, "pme", 7.0), "all-pairs"),
    ]
    assert [
        (m.config.coulomb_method, m.config.coulomb_cutoff, m.config.pme_error) for m in found
    ] == [
        ("pme", PME_CUTOFF, PME_ERROR),
        ("pme", 12.0, 1e-5),
        ("reaction-field", 5.0, None),
        ("pme", 8.0, PME_ERROR),
        ("reaction-field", 7.0, None),
        ("all-pairs", None, None),
    ]
    assert len({m.weights_hash for m in found}) == len(found)
    assert [m.uses_mesh for m in found] == [True, True, False, True, False, False]
    assert charged_model(coulomb=False).config.coulomb_method is None
    assert math.isinf(found[-1].cutoff)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"coulomb": "ewald"}, "coulomb='ewald' is unknown: use one of all-pairs, reaction-field"),
        ({"coulomb": "reaction-field"}, "needs a cutoff.*convert --coulomb-cutoff 12"),
        ({"coulomb": "all-pairs", "coulomb_cutoff": 9.0}, "leave coulomb_cutoff out"),
        ({"coulomb_cutoff": 9.0, "pme_error": 1e-4}, "pme_error is that of coulomb='pme'"),
        ({"coulomb": "pme", "pme_error": 0.0}, "pme_error=0.0 is out of range"),
        ({"coulomb": "pme", "pme_error": math.nan}, "pme_error=nan is out of range"),
        ({"coulomb": "pme", "coulomb_cutoff": 4.0}, "at least 4.6 Å.*not 4.0"),
    ],
)
def test_choices_that_mean_nothing_are_refused(options, message):
    with pytest.raises(InputError, match=message) as refusal:
        with_coulomb(charged_model(), **options)
    assert "\n" not in str(refusal.value)


def test_models_without_charges_are_refused():
    for model in (charged_model(coulomb=False), TensorNet(TensorNetConfig((1,)))):
        with pytest.raises(InputError, match="no Coulomb energy: leave coulomb out"):
            with_coulomb(model, "pme")
    with pytest.raises(InputError, match="leave pme_error out"):
        charged_model(coulomb=False, pme_error=1e-4)
    with pytest.raises(InputError, match="not None: use 9"):
        charged_model(pme_error=1e-4)


def test_systems_that_are_not_periodic_are_refused():
    model = charged_model(**EXACT)
    for pbc, message in (
        (False, "needs a periodic cell.*coulomb='all-pairs'"),
        ([False, True, False], "two for a slab, not one: give the wire a cell with gaps of vacuum"),
    ):
        with pytest.raises(InputError, match=message) as refusal:
            model.check_box(Box.of(20 * np.eye(3), pbc))
        assert "\n" not in str(refusal.value)
    for pbc in (True, [True, True, False]):
        model.check_box(Box.of(2 * np.eye(3), pbc))


def test_meshes_that_do_not_fit_into_memory_are_refused():
    model, wide = charged_model(**EXACT), CRYSTAL.copy()
    wide.set_cell(2000 * np.eye(3))
    with pytest.raises(InputError, match=r"3 meshes of .* too many: use smaller cells") as error:
        energy(model, wide)
    assert "\n" not in str(error.value)


def edges_of(atoms: Atoms, model: TensorNet2, *, pbc: bool = True):
    graph = neighbor_list(atoms.positions, model.cutoff, atoms.cell.array, pbc)
    return torch.from_numpy(atoms.numbers), torch.from_numpy(atoms.positions), graph


def test_what_the_module_cannot_compute_is_refused():
    model = charged_model(**EXACT)
    cell = torch.from_numpy(CRYSTAL.cell.array)[None]
    numbers, positions, graph = edges_of(CRYSTAL, model)
    with pytest.raises(InputError, match="needs a periodic cell"):
        predict(model, numbers, positions, graph)
    with pytest.raises(InputError, match="no volume"):
        predict(model, numbers, positions, graph, cell=0 * cell)
    vectors = graph.vectors(positions, cell, None)
    with pytest.raises(InputError, match="not available here"):
        model(numbers, vectors, graph, torch.zeros(len(numbers)))
    numbers, positions, graph = edges_of(WIDE, model, pbc=False)
    with pytest.raises(InputError, match=r"neighbor list has .* with images"):
        predict(model, numbers, positions, graph, cell=torch.from_numpy(WIDE.cell.array)[None])
