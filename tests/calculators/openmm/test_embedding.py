"""Mixed systems in which the model's charges act with those of the force field."""

from __future__ import annotations

import functools
import re
import warnings

import numpy as np
import pytest
import torch

from mlff_triton.engine.engine import Engine
from mlff_triton.errors import BackendError, EmbeddingWarning, InputError
from mlff_triton.kernels.electrostatics.parameters import pme_parameters
from mlff_triton.kernels.electrostatics.reference.ewald_sum import ewald_sum
from mlff_triton.kernels.electrostatics.types import COULOMB
from mlff_triton.model.prediction import Ensemble
from mlff_triton.testing import assert_within
from tests.support.charged import charged_model

openmm = pytest.importorskip("openmm", reason="OpenMM is an optional extra")
pytest.importorskip("openmmml", reason="openmm-ml is an optional extra")
from mlff_triton.calculators import decouple  # noqa: E402
from mlff_triton.calculators.openmm import cross_coulomb, embedding  # noqa: E402
from mlff_triton.calculators.openmm.cross_coulomb import (  # noqa: E402
    CrossCoulomb,
    Geometry,
    Partners,
    Surroundings,
)
from mlff_triton.calculators.openmm.particle_field import operators_of  # noqa: E402
from tests.support import mixed_systems as systems  # noqa: E402
from tests.support.mixed_systems import classical, context_of, energy_of, forces_of  # noqa: E402
from tests.support.openmm_systems import small_model, topology_of  # noqa: E402

EV = 96.48533212331001  # kJ/mol, from CODATA 2018
PART = [0, 1, 2, 15, 16, 17]
CUTOFF = 0.45  # nm


@functools.cache
def waters():
    return systems.waters()


@functools.cache
def polar_model(seed: int = 0, **changes):
    """Return a model with charges of about 1 e, and a Coulomb energy that is not scaled."""
    model = charged_model(seed=seed, **changes)
    model.charges[-1].linears[2].weight.data *= 20
    model.std.fill_(1.0)
    return model


@functools.cache
def mild_model(seed: int = 0):
    """Return a model that fused kernels serve, with smaller charges."""
    model = charged_model(seed=seed, hidden_channels=32)
    model.charges[-1].linears[2].weight.data *= 4
    model.std.fill_(1.0)
    return model


def mixed(system, part=PART, model=None, **options):
    model = polar_model() if model is None else model
    given = {"pme_error": 1e-5, "damping": 0.08, **options}
    return systems.mixed(waters(), system, list(part), model, **given)


def model_results(positions, part=PART, charge=0):
    engine = Engine(polar_model(), "cpu", "float64", backend="exact")
    return engine.compute(waters().numbers[part], positions[part], charge=charge)


@pytest.mark.parametrize("damping", [0.0, 0.08])
@pytest.mark.parametrize("method", ["NoCutoff", "CutoffNonPeriodic", "CutoffPeriodic", "PME"])
def test_forces_are_derivatives(method, damping):
    atoms = waters()
    system = mixed(classical(atoms, method, CUTOFF, tolerance=1e-4), damping=damping)
    context = context_of(system, atoms.positions)
    forces = forces_of(context)
    some = [0, 16, 3, 40]
    step = 2e-5  # Å; no pair may cross the cutoff
    found = systems.difference_forces(context, atoms.positions, some, step)
    assert_within(forces[some], found, 1e-5)
    if method != "PME":  # whose mesh does not keep the sum of forces at zero
        assert np.abs(forces.sum(0)).max() < 1e-8 * np.abs(forces).max()


def test_forces_follow_from_the_charges_on_positions():
    """Far away, where nothing else acts, the force changes with the response of the charges."""
    atoms = waters()
    context = context_of(mixed(classical(atoms, "NoCutoff")), atoms.positions)
    charges = np.array([-0.834, 0.417, 0.417] * 27)
    charges[PART] = model_results(atoms.positions).charges.numpy()
    frozen = systems.mixed(
        atoms,
        classical(atoms, "NoCutoff", charges=charges),
        PART,
        polar_model(),
        "mechanical",
        periodic=False,
    )
    apart = forces_of(context) - forces_of(context_of(frozen, atoms.positions))
    assert np.abs(apart[PART]).max() > 10  # kJ/mol/nm


@pytest.mark.parametrize(
    ("method", "energy_error", "force_error"),
    [
        ("NoCutoff", 1e-8, 1e-8),
        ("CutoffNonPeriodic", 1e-8, 1e-8),
        ("CutoffPeriodic", 1e-8, 1e-8),
        ("PME", 0.2, 1e-4),
    ],
)
def test_with_the_force_fields_charges_it_is_mechanical_embedding(
    method, energy_error, force_error
):
    atoms = waters()
    charges = np.array([-0.834, 0.417, 0.417] * 27)
    charges[PART] = model_results(atoms.positions).charges.numpy()
    system = classical(atoms, method, CUTOFF, charges, tolerance=1e-6)
    ours = context_of(mixed(system, damping=0, pme_error=1e-6), atoms.positions)
    theirs = context_of(
        systems.mixed(atoms, system, PART, polar_model(), "mechanical", periodic=False),
        atoms.positions,
    )
    assert energy_of(ours) == pytest.approx(energy_of(theirs), abs=energy_error)
    outside = np.delete(np.arange(len(atoms)), PART)
    assert_within(forces_of(ours)[outside], forces_of(theirs)[outside], force_error)


def test_without_a_cutoff_the_energy_is_that_of_all_pairs():
    atoms, damping = waters(), 0.7  # Å
    positions, part = torch.from_numpy(atoms.positions), torch.tensor(PART)
    found = model_results(atoms.positions)
    charges = torch.tensor([-0.834, 0.417, 0.417] * 27, dtype=torch.float64)
    outside = torch.from_numpy(np.delete(np.arange(len(atoms)), PART))
    distance = torch.cdist(positions[part], positions[outside])
    cross = COULOMB * found.charges @ (torch.erf(distance / damping) / distance) @ charges[outside]
    classical_energy = energy_of(
        context_of(_without_charges(classical(atoms, "NoCutoff")), atoms.positions)
    )
    expected = classical_energy + EV * (cross + found.energy.item()).item()
    system = mixed(classical(atoms, "NoCutoff"), damping=damping / 10)
    assert energy_of(context_of(system, atoms.positions)) == pytest.approx(expected, abs=1e-4)


def _without_charges(system):
    """Return a System whose part has neither charges nor terms within it."""
    from openmmml.embeddings import utilities

    system = utilities.removeBonds(system, topology_of(waters()), PART, True)
    nonbonded = next(f for f in system.getForces() if isinstance(f, openmm.NonbondedForce))
    for k in PART:
        _, sigma, epsilon = nonbonded.getParticleParameters(k)
        nonbonded.setParticleParameters(k, 0, sigma, epsilon)
        for j in PART:
            if j < k:
                nonbonded.addException(j, k, 0, 1, 0, True)
    return system


@pytest.mark.parametrize(
    ("device", "backend"),
    [("cpu", "exact"), ("cpu", "cpu"), pytest.param("cuda", "triton", marks=pytest.mark.gpu)],
)
@pytest.mark.parametrize("net", [0.0, 0.7])
def test_ewald_sums_in_any_box(net, device, backend):
    atoms = waters()
    cell = torch.tensor([[9.4, 0, 0], [2.1, 9.6, 0], [-3.1, 2.9, 9.3]], dtype=torch.float64)
    positions = torch.from_numpy(atoms.positions @ np.linalg.inv(atoms.cell.array)) @ cell
    charges = torch.tensor([-0.834, 0.417, 0.417] * 27, dtype=torch.float64)
    charges[:6] += net / 6
    outside, n_own = charges.clone(), 6
    outside[:n_own] = 0
    points = positions.clone().requires_grad_()
    q = charges.clone().requires_grad_()
    every = ewald_sum(q, points, cell[None]).energy - ewald_sum(outside, points, cell[None]).energy
    distance = torch.cdist(points[:n_own], points[:n_own]) + torch.eye(n_own)
    own = COULOMB * (q[:n_own, None] * q[:n_own] / distance)[torch.ones(6, 6).triu(1).bool()].sum()
    expected = every - own
    by_point, by_charge = torch.autograd.grad(expected.sum(), (points, q))

    site_charges, place = charges[n_own:].numpy(), torch.device(device)
    surroundings = Surroundings(np.arange(75), site_charges, "pme", True, 4.5, 1.0, 0.0, 1e-6)
    # Charges of the force field may be in any image
    sites = positions[n_own:] + torch.randint(-2, 3, (len(q) - n_own, 3)).double() @ cell
    geometry = Geometry(*(array.to(device) for array in (positions[:n_own], sites, cell)))
    coulomb = CrossCoulomb(surroundings, operators_of(place, backend), place)
    coulomb.mesh = pme_parameters(cell[None], 4.5, 1e-6)
    field = coulomb.at(geometry)
    found = coulomb.sums(field, charges[:n_own].to(device))
    assert found.energies.sum().item() == pytest.approx(expected.item(), abs=1e-5)
    assert_within(found.potential.cpu(), by_charge[:n_own], 1e-5)
    assert_within(found.of_own.cpu(), by_point[:n_own], 1e-5)
    assert_within(coulomb.at_sites(field, found).cpu(), by_point[n_own:], 1e-5)


@pytest.mark.parametrize("size", [1.0, 3.0, 15.0])
@pytest.mark.parametrize("method", ["reaction-field", "pme"])
@pytest.mark.parametrize("is_periodic", [True, False])
@pytest.mark.parametrize("backend", ["exact", "cpu"])
def test_sites_far_from_the_part_do_not_matter(backend, is_periodic, method, size, monkeypatch):
    """On a CPU, sites beyond the cutoff of a sphere around the part are left out."""
    if method == "pme" and not is_periodic:
        pytest.skip("there is no such method")
    box = torch.tensor([[20.0, 0, 0], [8.5, 21, 0], [-9, 7, 19]], dtype=torch.float64)
    torch.manual_seed(0)
    sites = torch.rand(700, 3).double() @ box + torch.randint(-2, 3, (700, 3)).double() @ box
    if not is_periodic:
        sites = 20 * torch.rand(700, 3).double()
    own = size * torch.rand(7, 3).double()  # at a corner, so that partners are beyond three faces
    charges = torch.rand(700).double() - 0.5
    surroundings = Surroundings(
        np.arange(700), charges.numpy(), method, is_periodic, 5.0, 78.3, 0.9, 1e-4
    )
    place = torch.device("cpu")
    coulomb = CrossCoulomb(surroundings, operators_of(place, backend), place)
    coulomb.mesh = pme_parameters(box[None], 5.0, 1e-4) if method == "pme" else None
    geometry = Geometry(own, sites, box)
    results, numbers = [], []
    for _ in range(2):
        field = coulomb.at(geometry)
        numbers.append(len(field.near.sites))
        sums = coulomb.sums(field, torch.linspace(-1, 2, 7).double())
        results.append([*sums[:3], coulomb.at_sites(field, sums)])
        everything = Partners(None, sites, box if is_periodic else None)
        monkeypatch.setattr(coulomb, "_near", lambda _: everything)  # noqa: B023
    few, every = results
    for value, exact in zip(few, every, strict=True):
        assert_within(value, exact, 1e-12)
    is_ambiguous = is_periodic and size > 3  # images of so large a sphere overlap
    assert (numbers[0] == 700) == is_ambiguous


@pytest.mark.parametrize("limit", [1, 7, 20, 1000])
def test_large_parts_need_little_memory(limit, monkeypatch):
    """Pairs of the part are computed a few at a time, when the charges are known."""
    atoms = waters()
    system = classical(atoms, "PME", CUTOFF)
    context = context_of(mixed(system), atoms.positions)
    expected = energy_of(context), forces_of(context)
    monkeypatch.setattr(cross_coulomb, "CHUNK", limit)
    context.setPositions(atoms.positions / 10)
    assert energy_of(context) == pytest.approx(expected[0], abs=1e-9)
    assert_within(forces_of(context), expected[1], 1e-12)


ON_GPU = [
    pytest.param("cuda", backend, dtype, marks=pytest.mark.gpu)
    for backend in ("triton-graph", "triton", "torch", "exact")
    for dtype in ("float64", "float32")
]
ON_CPU = [("cpu", b, d) for b in ("cpu", "torch") for d in ("float64", "float32")]


@pytest.mark.parametrize(("device", "backend", "dtype"), [*ON_CPU, *ON_GPU])
@pytest.mark.parametrize("method", ["NoCutoff", "CutoffNonPeriodic", "CutoffPeriodic", "PME"])
def test_backends_compute_what_the_exact_module_does(method, device, backend, dtype):
    """All forces of the coupling are compared, at several positions one after the other.

    Charges in float32 are as exact as those of the module in float32.
    """
    atoms, model = waters(), mild_model()
    system = classical(atoms, method, CUTOFF)
    options = {"model": model, "forceGroup": 7}
    exact, ours = (
        context_of(mixed(system, **options, **given), atoms.positions)
        for given in (
            {"device": "cpu", "backend": "exact"},
            {"device": device, "backend": backend, "dtype": dtype},
        )
    )
    accuracy = {"float64": 1e-8, "float32": 1e-5}[dtype]
    for step in range(4):  # so far that the neighbor list is made anew
        moved = atoms.copy()
        moved.rattle(0.01 * step, seed=step)
        moved.positions += step * np.array([0.9, -0.5, 0.3])
        energies, forces = zip(*(_coupling(c, moved.positions) for c in (exact, ours)), strict=True)
        assert energies[1] == pytest.approx(energies[0], abs=accuracy * 1e3)
        assert_within(forces[1], forces[0], accuracy)
        outside = np.delete(np.arange(len(atoms)), PART)
        assert_within(forces[1][outside], forces[0][outside], accuracy)


def _coupling(context, positions):
    """Return the energy and forces of the model's force alone, at positions in Å."""
    context.setPositions(positions / 10)
    state = context.getState(energy=True, forces=True, groups={7})
    return state.getPotentialEnergy()._value, state.getForces(asNumpy=True)._value


@pytest.mark.gpu
def test_ensembles_and_changing_boxes_on_gpus():
    """Members have graphs of their own, which are captured again for another mesh."""
    atoms = waters()
    model = Ensemble([mild_model(seed) for seed in (0, 1)])
    system = classical(atoms, "PME", CUTOFF)
    contexts = [
        context_of(mixed(system, model=model, forceGroup=7, device=d), atoms.positions)
        for d in ("cpu", "cuda")
    ]
    for scale in (1.0, 1.6, 1.02, 2.0):
        for context in contexts:
            context.setPeriodicBoxVectors(*(scale * atoms.cell.array / 10))
        (energy, forces), (found, ours) = (_coupling(c, atoms.positions) for c in contexts)
        assert found == pytest.approx(energy, abs=1e-5)
        assert_within(ours, forces, 1e-8)


@pytest.mark.parametrize(
    ("device", "backend"),
    [("cpu", "cpu"), pytest.param("cuda", "triton-graph", marks=pytest.mark.gpu)],
)
def test_the_default_is_the_fastest_backend(device, backend, monkeypatch):
    made, force_of = [], embedding._force_of
    monkeypatch.setattr(embedding, "_force_of", lambda f, g: made.append(f) or force_of(f, g))
    mixed(_with(), model=mild_model(), device=device)
    assert made[0].engine.backend == backend


def test_a_far_dimer_is_that_of_the_model():
    """Two equal molecules interact as they do if the model computes both.

    The total charge is distributed over both, which are neutral because they are equal. With
    several charges per atom, the model would have another interaction than that of their mean.
    """
    model = polar_model(charge_channels=1)
    weights = torch.zeros_like(model.charge_weights)
    weights[-1] = 1
    model.charge_weights = weights
    atoms = waters()[:6]
    first = atoms.positions[:3] - atoms.positions[0]
    turn = np.array([[0.0, 0.6, -0.8], [1.0, 0.0, 0.0], [0.0, -0.8, -0.6]])
    assert np.linalg.det(turn) == pytest.approx(1)
    atoms.positions = np.concatenate([first, first @ turn + [20, 3, -5]])
    engine = Engine(model, "cpu", "float64", backend="exact")
    both = engine.compute(atoms.numbers, atoms.positions)
    alone = engine.compute(atoms.numbers[:3], first)
    charges = np.tile(alone.charges.numpy(), 2)
    # The model's mean is added once per system
    expected = both.energy.item() - 2 * alone.energy.item() + model.mean.item()

    system = systems.mixed(atoms, classical(atoms, "NoCutoff", charges=charges), [0, 1, 2], model)
    context = context_of(system, atoms.positions)
    rest = context_of(
        _lone_rest(classical(atoms, "NoCutoff", charges=0 * charges)), atoms.positions
    )
    cross = energy_of(context) - energy_of(rest) - EV * alone.energy.item()
    assert abs(cross) > 0.1
    assert cross == pytest.approx(EV * expected, rel=1e-3)


def _lone_rest(system):
    """Return a System whose first molecule has no bonded terms."""
    from openmmml.embeddings import utilities

    return utilities.removeBonds(system, topology_of(waters()[:6]), [0, 1, 2], True)


@pytest.mark.parametrize("method", ["CutoffPeriodic", "PME"])
def test_wrapped_positions_do_not_matter(method):
    atoms = waters()
    system = mixed(classical(atoms, method, CUTOFF, tolerance=1e-4))
    shifts = np.random.default_rng(0).integers(-1, 2, (9 * 3, 3)).repeat(3, axis=0)
    shifts[1], shifts[16] = [1, 0, -1], [0, 2, 0]  # atoms of the part alone
    moved = atoms.positions + shifts @ atoms.cell.array
    before, after = (context_of(system, p) for p in (atoms.positions, moved))
    both = [forces_of(c)[PART] for c in (before, after)]
    # Bonded terms of other molecules are not periodic, and molecules of the part are whole
    assert_within(both[1], both[0], 1e-7)


def test_the_box_may_change():
    atoms = waters()
    context = context_of(mixed(classical(atoms, "PME", CUTOFF, tolerance=1e-5)), atoms.positions)
    first = energy_of(context)
    cell = 1.15 * atoms.cell.array
    positions = atoms.positions @ np.linalg.inv(atoms.cell.array) @ cell
    context.setPeriodicBoxVectors(*cell / 10)
    context.setPositions(positions / 10)
    larger = energy_of(context)
    stretched = atoms.copy()
    stretched.set_cell(cell)
    stretched.positions = positions
    system = systems.mixed(
        stretched,
        classical(stretched, "PME", CUTOFF, tolerance=1e-5),
        PART,
        polar_model(),
        pme_error=1e-5,
        damping=0.08,
    )
    assert larger != pytest.approx(first, abs=1.0)
    assert larger == pytest.approx(energy_of(context_of(system, positions)), abs=1e-2)


def test_barostats_find_molecules_of_the_part():
    atoms = waters()
    context = context_of(mixed(classical(atoms, "PME", CUTOFF, tolerance=1e-4)), atoms.positions)
    molecules = [tuple(m) for m in context.getMolecules()]
    assert (15, 16, 17) in molecules
    assert len(molecules) == 27


@pytest.mark.filterwarnings("ignore::mlff_triton.errors.EmbeddingWarning")
def test_energy_is_conserved():
    atoms, model = waters(), charged_model()  # of a scale that holds the molecule together
    model.charges[-1].linears[2].weight.data *= 5
    classical_system = classical(atoms, "CutoffNonPeriodic", 2.0)
    context = context_of(mixed(classical_system, [0, 1, 2], model), atoms.positions)
    context.setVelocities(0.1 * np.random.default_rng(0).standard_normal((len(atoms), 3)))
    integrator = context.getIntegrator()
    integrator.setStepSize(0.0001)
    totals, kinetic = [], []
    for _ in range(12):
        integrator.step(5)
        state = context.getState(energy=True)
        kinetic.append(state.getKineticEnergy()._value)
        totals.append(kinetic[-1] + state.getPotentialEnergy()._value)
    assert np.ptp(kinetic) > 100  # kJ/mol
    assert np.ptp(totals) < 2e-3 * np.ptp(kinetic)


@pytest.mark.parametrize("method", ["CutoffPeriodic", "PME"])
def test_interpolation(method):
    atoms = waters()
    plain = classical(atoms, method, CUTOFF, tolerance=1e-5)
    context = context_of(mixed(plain, interpolate=True), atoms.positions)
    ends = [context_of(s, atoms.positions) for s in (plain, mixed(plain))]
    energies, forces = [energy_of(c) for c in ends], [forces_of(c) for c in ends]
    for value in (0.0, 0.3, 1.0):
        context.setParameter("lambda_interpolate", value)
        expected = (1 - value) * energies[0] + value * energies[1]
        assert energy_of(context) == pytest.approx(expected, rel=1e-7)
        assert_within(forces_of(context), (1 - value) * forces[0] + value * forces[1], 1e-6)


def test_four_site_water_is_supported_outside_of_the_part():
    """Forces on virtual sites move the atoms that they are made of."""
    atoms = waters()
    system = classical(atoms, "NoCutoff")
    topology = topology_of(atoms)
    nonbonded = system.getForce(0)
    residue = list(topology.residues())[26]
    topology.addAtom("M", None, residue)
    site = system.addParticle(0)
    system.setVirtualSite(site, openmm.ThreeParticleAverageSite(78, 79, 80, 0.6, 0.2, 0.2))
    nonbonded.addParticle(-0.5, 1, 0)
    for k in (78, 79, 80):
        nonbonded.addException(k, site, 0, 1, 0)
    mixture = systems.mixed(atoms, system, PART, polar_model(), topology=topology)
    middle = np.array([0.6, 0.2, 0.2]) @ atoms.positions[78:81]
    positions = np.concatenate([atoms.positions, [middle]])
    context = context_of(mixture, positions)
    forces = forces_of(context)
    step, energies = 1e-4, []
    for sign in (1, -1):
        moved = positions.copy()
        moved[78, 1] += sign * step
        context.setPositions(moved / 10)
        context.computeVirtualSites()
        energies.append(energy_of(context))
    assert forces[78, 1] == pytest.approx((energies[1] - energies[0]) / (2 * step / 10), rel=1e-5)


def test_ensembles_are_means():
    atoms = waters()
    members = [polar_model(seed) for seed in (0, 1)]
    system = classical(atoms, "PME", CUTOFF, tolerance=1e-4)
    both = context_of(mixed(system, model=Ensemble(members)), atoms.positions)
    each = [context_of(mixed(system, model=m), atoms.positions) for m in members]
    assert energy_of(both) == pytest.approx(np.mean([energy_of(c) for c in each]))
    assert_within(forces_of(both), np.mean([forces_of(c) for c in each], axis=0), 1e-9)


def test_systems_survive_files():
    atoms = waters()
    system = mixed(classical(atoms, "PME", CUTOFF, tolerance=1e-4))
    again = openmm.XmlSerializer.deserialize(openmm.XmlSerializer.serialize(system))
    energies = [energy_of(context_of(s, atoms.positions)) for s in (system, again)]
    assert energies[0] == energies[1]


def test_scaled_coulomb_energies_warn():
    with pytest.warns(EmbeddingWarning, match="multiplies its own Coulomb energy by 10 eV"):
        mixed(_with(), model=charged_model())


def test_charged_parts_warn_unless_the_force_field_agrees():
    system = classical(waters(), "PME", CUTOFF)
    with pytest.warns(EmbeddingWarning, match=r"\+0 e in the force field.*background.*charge"):
        mixed(system, charge=1)
    charges = np.array([-0.834, 0.417, 0.417] * 27)
    charges[0] += 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mixed(classical(waters(), "PME", CUTOFF, charges), charge=1)


def _with(*forces, **options):
    system = classical(waters(), **{"method": "PME", "cutoff": CUTOFF, **options})
    for force in forces:
        system.addForce(force)
    return system


def _custom_nonbonded(name):
    force = openmm.CustomNonbondedForce(f"{name}1*{name}2*r")
    force.addPerParticleParameter(name)
    for _ in range(len(waters())):
        force.addParticle([1.0])
    return force


def _changed(change):
    system = _with()
    change(system, system.getForce(0))
    return system


BAD_SYSTEMS = {
    "two": (lambda: _with(openmm.NonbondedForce()), "has 2: make it with all charges in one"),
    "none": (lambda: _changed(lambda s, _: s.removeForce(0)), "the System has 0"),
    "generalized Born": (lambda: _with(openmm.GBSAOBCForce()), "does not support GBSAOBCForce"),
    "custom Born": (lambda: _with(openmm.CustomGBForce()), "does not support CustomGBForce"),
    "multipoles": (lambda: _with(openmm.AmoebaMultipoleForce()), "AmoebaMultipoleForce"),
    "Drude": (lambda: _with(openmm.DrudeForce()), "does not support DrudeForce"),
    "custom charges": (lambda: _with(_custom_nonbonded("charge")), "seems to be a charge"),
    "LJPME": (
        lambda: _changed(lambda _, f: f.setNonbondedMethod(openmm.NonbondedForce.LJPME)),
        "does not support LJPME",
    ),
    "no charges": (
        lambda: _with(charges=np.zeros(81)),
        "all charges outside of the machine-learning part are zero",
    ),
    "large cutoff": (lambda: _with(cutoff=0.6), "exceeds half of the box of 0.9312 nm"),
    "exception": (
        lambda: _changed(lambda _, f: f.addException(0, 4, 0, 1, 0)),
        "an exception of the NonbondedForce leaves the machine-learning part, from atom 0",
    ),
    "constraint": (
        lambda: _changed(lambda s, _: s.addConstraint(1, 4, 0.2)),
        "a constraint leaves the machine-learning part",
    ),
    "virtual site": (
        lambda: _changed(
            lambda s, _: s.setVirtualSite(4, openmm.TwoParticleAverageSite(0, 5, 0.5, 0.5))
        ),
        "a virtual site leaves the machine-learning part",
    ),
    "virtual site within": (
        lambda: _changed(
            lambda s, _: s.setVirtualSite(0, openmm.TwoParticleAverageSite(1, 2, 0.5, 0.5))
        ),
        "atom 0 .* is a virtual site",
    ),
    "offsets": (
        lambda: _changed(
            lambda _, f: (
                f.addGlobalParameter("x", 0.0),
                f.addParticleParameterOffset("x", 4, 1.0, 0, 0),
            )
        ),
        "has offsets",
    ),
    "no direct space": (
        lambda: _changed(lambda _, f: f.setIncludeDirectSpace(False)),
        "has no direct space",
    ),
    "fewer particles": (
        lambda: _changed(lambda s, _: s.addParticle(1.0)),
        "82 particles, but the topology has 81",
    ),
}


@pytest.mark.parametrize("name", BAD_SYSTEMS)
def test_systems_that_are_refused(name):
    make, message = BAD_SYSTEMS[name]
    with pytest.raises(InputError, match=message) as refusal:
        mixed(make())
    assert "\n" not in str(refusal.value)


def test_custom_forces_without_charges_leave_the_part_alone():
    system = mixed(_with(_custom_nonbonded("weight")))
    (custom,) = (f for f in system.getForces() if isinstance(f, openmm.CustomNonbondedForce))
    pairs = len(PART) * (len(PART) - 1) // 2
    assert custom.getNumExclusions() == pairs


BAD_OPTIONS = {
    "damping=-0.1": ({"damping": -0.1}, "damping must be a length in nm"),
    "damping=nan": ({"damping": float("nan")}, "damping must be a length in nm"),
    "damping=True": ({"damping": True}, "damping must be a length in nm"),
    "damping='short'": ({"damping": "short"}, "damping must be a length in nm"),
    "damping=0.2": ({"damping": 0.2}, "too long for a cutoff of 0.45 nm: use at most 0.09"),
    "pme_error=1": ({"pme_error": 1.0}, "pme_error=1.0 is out of range"),
    "pme_error=nan": ({"pme_error": float("nan")}, "pme_error=nan is out of range"),
    "dtype": ({"dtype": "float16"}, "dtype='float16' is unknown"),
    "device": ({"device": "tpu"}, "device='tpu' is unknown"),
    "skin": ({"skin": -1}, "skin must be finite and not negative"),
    "charge": ({"charge": 0.5}, "the total charge must be an integer"),
    "periodic": ({"periodic": True}, "periodic is unknown to embedding='ml-charges'"),
    "links": ({"linkAtomDistances": []}, "linkAtomDistances is unknown"),
    "interpolation": (
        {"interpolate": True, "custom": True},
        "cannot interpolate Systems with a CustomNonbondedForce",
    ),
    "cut": ({"part": [0, 1]}, "a bond leaves the machine-learning part, from atom 0 .*whole mol"),
    "all": ({"part": range(81)}, "no atoms are left to the force field"),
    "empty": ({"part": []}, "particles is empty"),
    "twice": ({"part": [0, 1, 2, 2]}, "names atom 2 more than once"),
    "outside": ({"part": [0, 1, 2, 99]}, "there is no particle 99"),
    "no charges": ({"model": small_model()}, "the model predicts no charges"),
    "reaction field": (
        {"model": polar_model(coulomb_cutoff=5.0)},
        "the model has coulomb='reaction-field'",
    ),
}


@pytest.mark.parametrize("name", BAD_OPTIONS)
def test_options_that_are_refused(name):
    options, message = BAD_OPTIONS[name]
    options = dict(options)
    system = _with(*[_custom_nonbonded("weight")] * options.pop("custom", False))
    with pytest.raises(InputError, match=message) as refusal:
        mixed(system, **options)
    assert "\n" not in str(refusal.value)


REFUSED = {
    "route": (
        {"route": "torch"},
        "embedding='ml-charges' has no route='torch': use route='python'",
    ),
    "unknown": ({"backend": "numpy"}, "backend='numpy' is unknown: use 'auto' or one of"),
    "channels": (
        {"backend": "triton", "device": "cuda"},
        "Triton kernels serve (32, 64, 128, 256) channels, not 6; use backend='exact'",
    ),
}


@pytest.mark.parametrize(
    "name", ["route", "unknown", pytest.param("channels", marks=pytest.mark.gpu)]
)
def test_routes_and_backends_that_are_refused(name):
    options, message = REFUSED[name]
    with pytest.raises((BackendError, InputError), match=re.escape(message)) as refusal:
        mixed(_with(), **options)
    assert "\n" not in str(refusal.value)


def test_a_second_force_is_refused():
    system = mixed(_with())
    with pytest.raises(InputError, match="already has a force of mlff_triton"):
        mixed(system)


def test_lengths_may_have_units():
    atoms = waters()
    energies = [
        energy_of(context_of(mixed(_with(), damping=d), atoms.positions))
        for d in (np.float64(0.05), 0.5 * openmm.unit.angstrom, 0.0)
    ]
    assert energies[0] == pytest.approx(energies[1])
    assert energies[0] != pytest.approx(energies[2], abs=1e-5)


@pytest.mark.parametrize("method", ["NoCutoff", "PME"])
def test_fixed_charges_of_a_charged_part_warn_unless_the_model_agrees(method):
    atoms = waters()
    charges = np.array([-0.834, 0.417, 0.417] * 27)
    charges[[0, 3]] += 1.0
    system = classical(atoms, method, CUTOFF, charges)
    part, options = list(range(6)), {"embedding": "mechanical", "periodic": False}
    with pytest.warns(EmbeddingWarning, match=r"\+2 e in the force field, but \+0 e in the model:"):
        systems.mixed(atoms, system, part, polar_model(), **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        systems.mixed(atoms, system, part, polar_model(), charge=2, **options)
        systems.mixed(atoms, system, part[1:2], polar_model(), **options)  # within a molecule


@pytest.mark.parametrize("interpolate", [False, True])
def test_images_of_a_part_are_the_models_if_it_sums_them(interpolate):
    """A part of all atoms has the energy of the model alone, whatever the force field says."""
    atoms = waters()
    model = polar_model(coulomb_cutoff=4.6, pme_error=1e-4)
    system = classical(atoms, "PME", CUTOFF, tolerance=1e-5)
    (nonbonded,) = (f for f in system.getForces() if isinstance(f, openmm.NonbondedForce))
    nonbonded.setUseDispersionCorrection(False)
    options = {"embedding": "mechanical", "interpolate": interpolate}
    mixture = systems.mixed(atoms, system, list(range(81)), model, **options)
    context = context_of(mixture, atoms.positions)
    if interpolate:
        context.setParameter("lambda_interpolate", 1.0)
    engine = Engine(model, "cpu", "float64", backend="exact")
    expected = engine.compute(atoms.numbers, atoms.positions, atoms.cell.array, atoms.pbc)
    assert energy_of(context) == pytest.approx(float(expected.energy[0]) * EV, abs=0.05)


def test_models_that_sum_images_do_not_take_a_decoupled_part():
    system = decouple(classical(waters(), "PME", CUTOFF), PART)
    model = polar_model(coulomb_cutoff=4.6, pme_error=1e-4)
    with pytest.raises(InputError, match=r"images.*so does the force field of the decoupled"):
        systems.mixed(waters(), system, PART, model, embedding="mechanical")
