"""The OpenMM force: equal to the ASE calculator with every integrator, box and group."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from ase.build import molecule

from mlff_triton import Ensemble, TensorNet, TensorNetCalculator, create_openmm_force
from mlff_triton.calculators.openmm.force import EngineForce
from mlff_triton.calculators.openmm.recipe import Recipe
from mlff_triton.errors import InputError
from mlff_triton.testing import assert_within, random_cluster, random_crystal

openmm = pytest.importorskip("openmm", reason="OpenMM is an optional extra")
from openmm import unit  # noqa: E402

from tests.support.openmm_systems import (  # noqa: E402
    DEVICES,
    DTYPES,
    EV,
    FS,
    PLATFORMS,
    STRUCTURES,
    assert_as_ase,
    context_of,
    default_calculator,
    energy_and_forces,
    force_for,
    now,
    reduced,
    small_model,
    system_of,
    topology_of,
)


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", STRUCTURES)
def test_energies_and_forces_are_those_of_ase(name, dtype, platform):
    atoms, device = STRUCTURES[name], DEVICES[platform]
    model = "default" if name in ("molecule", "water") else small_model()
    context = context_of(
        system_of(atoms, force_for(atoms, model, dtype=dtype, device=device)), atoms, platform
    )
    calculator = TensorNetCalculator(model, device=device, dtype=dtype)
    assert_as_ase(context, atoms, calculator)


def test_a_charge_is_the_models():
    atoms = random_cluster(6)
    energies = {}
    for charge in (-1, 0, 1):
        force = force_for(atoms, small_model(), dtype="float64", charge=charge)
        atoms.info["charge"] = charge
        context = context_of(system_of(atoms, force), atoms)
        assert_as_ase(
            context, atoms, TensorNetCalculator(small_model(), device="cpu", dtype="float64")
        )
        energies[charge] = energy_and_forces(context)[0]
    assert len(set(energies.values())) == 3


def test_topologies_say_elements_and_periodicity():
    topology = topology_of(STRUCTURES["water"])
    force = create_openmm_force(topology, device="cpu", force_group=3)
    assert force.usesPeriodicBoundaryConditions()
    assert (force.getForceGroup(), force.getName()) == (3, "mlff_triton")
    assert list(force.getParticles()) == []
    system = system_of(STRUCTURES["water"], force)
    assert system.usesPeriodicBoundaryConditions()
    context = context_of(system, STRUCTURES["water"])
    assert_as_ase(context, STRUCTURES["water"], default_calculator("cpu", "float32"))
    assert not create_openmm_force(
        topology, small_model(), periodic=False, device="cpu"
    ).usesPeriodicBoundaryConditions()
    topology.setPeriodicBoxVectors(None)
    assert not create_openmm_force(
        topology, small_model(), device="cpu"
    ).usesPeriodicBoundaryConditions()


# Boxes


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_box_may_change_at_every_step(platform):
    atoms, device = STRUCTURES["triclinic"], DEVICES[platform]
    force = force_for(atoms, small_model(), dtype="float64", device=device)
    context = context_of(system_of(atoms, force), atoms, platform)
    calculator = TensorNetCalculator(small_model(), device=device, dtype="float64")
    for scale in (1.0, 1.03, 0.97, 1.1):
        box, positions = atoms.cell.array * scale / 10, atoms.positions * scale / 10
        box[2, 0] += 0.001
        context.setPeriodicBoxVectors(*box)
        context.setPositions(positions)
        assert_as_ase(context, atoms, calculator)


@pytest.mark.parametrize("platform", ["Reference", "CPU"])
def test_barostat_moves_the_box(platform):
    atoms = STRUCTURES["water"]
    barostat = openmm.MonteCarloBarostat(1000.0, 300.0, 1)
    barostat.setRandomNumberSeed(1)
    integrator = openmm.LangevinMiddleIntegrator(300.0, 1.0, 0.5 * FS)
    integrator.setRandomNumberSeed(1)
    context = context_of(system_of(atoms, force_for(atoms), barostat), atoms, platform, integrator)
    integrator.step(8)
    assert now(context, atoms).get_volume() != pytest.approx(atoms.get_volume(), rel=1e-6)
    assert_as_ase(context, atoms, default_calculator("cpu", "float32"))


def test_pressure_by_a_change_of_volume_is_that_of_ases_stress():
    atoms = reduced(random_crystal(12, "triclinic", seed=2))
    context = context_of(system_of(atoms, force_for(atoms, small_model(), dtype="float64")), atoms)
    energies = []
    strain = 1e-4
    for scale in (1 - strain, 1 + strain):
        context.setPeriodicBoxVectors(*atoms.cell.array * scale / 10)
        context.setPositions(atoms.positions * scale / 10)
        energies.append(energy_and_forces(context)[0])
    volume = atoms.get_volume()
    slope = (energies[1] - energies[0]) / (volume * ((1 + strain) ** 3 - (1 - strain) ** 3))
    atoms.calc = TensorNetCalculator(small_model(), device="cpu", dtype="float64")
    assert slope == pytest.approx(atoms.get_stress(voigt=False).trace() / 3, rel=1e-5)


# Subsets


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("name", ["molecule", "triclinic"])
def test_a_part_of_the_atoms(name, platform):
    atoms, device = STRUCTURES[name], DEVICES[platform]
    particles = [6, 0, 1, 2, 5]
    force = force_for(atoms, small_model(), particles=particles, dtype="float64", device=device)
    context = context_of(system_of(atoms, force), atoms, platform)
    part = atoms[particles]
    part.calc = TensorNetCalculator(small_model(), device=device, dtype="float64")
    energy, forces = energy_and_forces(context)
    assert energy == pytest.approx(part.get_potential_energy(), rel=1e-6)
    assert_within(forces[particles], part.get_forces(), 1e-6)
    assert not np.delete(forces, particles, axis=0).any()


def test_virtual_sites_stay_out():
    topology = topology_of(STRUCTURES["water"])
    oxygen, residue = next(topology.atoms()), topology.addResidue("SITE", next(topology.chains()))
    site = topology.addAtom("M", None, residue)
    topology.addBond(oxygen, site)
    others = [atom.index for atom in topology.atoms() if atom is not site]
    force = create_openmm_force(topology, particles=others, device="cpu")
    assert list(force.getParticles()) == others
    with pytest.raises(InputError, match=r"atom 24 \(M of SITE 9\) has no element.*particles="):
        create_openmm_force(topology, device="cpu")


# Integrators and the like


INTEGRATORS = {
    "Verlet": lambda: openmm.VerletIntegrator(0.5 * FS),
    "LangevinMiddle": lambda: openmm.LangevinMiddleIntegrator(300.0, 1.0, 0.5 * FS),
    "VariableVerlet": lambda: openmm.VariableVerletIntegrator(1e-4),
    "VariableLangevin": lambda: openmm.VariableLangevinIntegrator(300.0, 1.0, 1e-4),
    "NoseHoover": lambda: openmm.NoseHooverIntegrator(300.0, 1.0, 0.5 * FS),
}


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("name", INTEGRATORS)
def test_integrators(name, platform):
    atoms, device = STRUCTURES["molecule"], DEVICES[platform]
    force = force_for(atoms, device=device, dtype="float64")
    integrator = INTEGRATORS[name]()
    context = context_of(system_of(atoms, force), atoms, platform, integrator)
    context.setVelocitiesToTemperature(300.0, 1)
    integrator.step(10)
    assert context.getStepCount() == 10
    assert np.abs(now(context, atoms).positions - atoms.positions).max() > 0.005
    assert_as_ase(context, atoms, default_calculator(device, "float64"))


@pytest.mark.filterwarnings("ignore::mlff_triton.UnknownChemistryWarning")  # of trial steps
def test_minimizer():
    atoms = STRUCTURES["molecule"]
    context = context_of(system_of(atoms, force_for(atoms)), atoms)
    before = energy_and_forces(context)[0]
    openmm.LocalEnergyMinimizer.minimize(context, tolerance=1.0, maxIterations=200)
    energy, forces = energy_and_forces(context)
    assert energy < before - 0.1
    assert np.sqrt((forces**2).mean()) < 0.005
    assert_as_ase(context, atoms, default_calculator("cpu", "float32"))


def test_slow_group_of_multiple_time_steps(monkeypatch):
    """Springs are evaluated twice per step, the model once."""
    atoms = STRUCTURES["molecule"]
    springs = openmm.HarmonicBondForce()
    springs.addBond(0, 1, 0.15, 1000.0)
    system = system_of(atoms, springs, force_for(atoms, force_group=1))
    integrator = openmm.MTSLangevinIntegrator(300.0, 1.0, 1.0 * FS, [(0, 2), (1, 1)])
    context = context_of(system, atoms, integrator=integrator)
    assert_as_ase(context, atoms, default_calculator("cpu", "float32"), groups={1})
    calls, compute = [], EngineForce.compute

    def counted(self, state):
        calls.append(state)
        return compute(self, state)

    monkeypatch.setattr(EngineForce, "compute", counted)
    integrator.step(10)
    assert len(calls) in (10, 11)
    assert_as_ase(context, atoms, default_calculator("cpu", "float32"), groups={1})
    energies = [energy_and_forces(context, groups)[0] for groups in ({0}, {1}, {0, 1})]
    assert energies[0] > 0
    assert sum(energies[:2]) == pytest.approx(energies[2], rel=1e-12)


@pytest.mark.parametrize("threaded", [False, True], ids=["in turns", "in threads"])
def test_two_contexts_at_once(threaded):
    """They share an engine, and each gives the same bits as alone."""
    atoms = STRUCTURES["water"]
    system = system_of(atoms, force_for(atoms, small_model()))

    def start(seed):
        integrator = openmm.VerletIntegrator(0.5 * FS)
        context = context_of(system, atoms, integrator=integrator)
        context.setVelocitiesToTemperature(300.0, seed)
        return context, integrator

    alone = []
    for seed in (1, 2):
        context, integrator = start(seed)
        integrator.step(12)
        alone.append(now(context, atoms).positions)
    pair = [start(seed) for seed in (1, 2)]
    if threaded:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda both: both[1].step(12), pair))
    else:
        for _ in range(12):
            for _, integrator in pair:
                integrator.step(1)
    for expected, (context, _) in zip(alone, pair, strict=True):
        assert np.array_equal(now(context, atoms).positions, expected)
    assert not np.array_equal(*alone)


def test_each_thread_gets_the_energy_of_its_own_positions():
    """Another thread may call as soon as the positions of one are stored."""

    class Slow(EngineForce):
        def __setattr__(self, name, value):
            super().__setattr__(name, value)
            if name == "_batch":
                time.sleep(0.05)

    atoms = molecule("CH3OH")
    force = Slow(Recipe("default", atoms.numbers, device="cpu"))
    states = []
    for seed in range(4):
        atoms.rattle(0.02, seed=seed)
        states.append(context_of(system_of(atoms), atoms).getState(positions=True))
    alone = [force(state)[0] for state in states]
    with ThreadPoolExecutor(len(states)) as pool:
        assert [energy for energy, _ in pool.map(force, states)] == alone
    assert len(set(alone)) == len(states)


def test_steps_from_another_thread():
    atoms = STRUCTURES["molecule"]
    integrator = openmm.VerletIntegrator(0.5 * FS)
    context = context_of(system_of(atoms, force_for(atoms)), atoms, "CPU", integrator)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(integrator.step, 5).result()
    assert_as_ase(context, atoms, default_calculator("cpu", "float32"))


@pytest.mark.filterwarnings("ignore::mlff_triton.UnknownChemistryWarning")  # of trial steps
def test_nve_conserves_energy():
    """The energy of methanol at about 300 K oscillates for 0.05 ps, and does not drift."""
    atoms = molecule("CH3OH")
    integrator = openmm.VerletIntegrator(0.5 * FS)
    context = context_of(system_of(atoms, force_for(atoms)), atoms, integrator=integrator)
    openmm.LocalEnergyMinimizer.minimize(context, tolerance=10.0)
    context.setVelocitiesToTemperature(600.0, 3)  # half of it becomes potential energy
    totals = []
    for _ in range(100):
        integrator.step(1)
        state = context.getState(energy=True)
        total = state.getPotentialEnergy() + state.getKineticEnergy()
        totals.append(total.value_in_unit(unit.kilojoule_per_mole) / EV / len(atoms))
    assert np.ptp(totals) < 2e-3
    assert abs(np.mean(totals[50:]) - np.mean(totals[:50])) < 1e-4


# Energy without references


@pytest.mark.parametrize(
    "model", [small_model(), Ensemble([small_model(1), small_model(2)])], ids=["one", "two"]
)
def test_references_are_a_constant(model):
    atoms = STRUCTURES["water"]
    part = list(range(9))
    full, shifted = (
        energy_and_forces(
            context_of(
                system_of(
                    atoms,
                    force_for(
                        atoms, model, dtype="float64", particles=part, remove_references=removed
                    ),
                ),
                atoms,
            )
        )
        for removed in (False, True)
    )
    weights = [1.0] if isinstance(model, TensorNet) else [2.0, 3.0]  # 1 + seed
    lone = np.mean([-w * (4.0 * 3 + 1.0 * 6) for w in weights]) + 0.5
    assert full[0] - shifted[0] == pytest.approx(lone, abs=1e-9)
    assert np.array_equal(full[1], shifted[1])


def test_shipped_model_keeps_digits_without_references():
    atoms = STRUCTURES["water"]
    force = force_for(atoms, remove_references=True)
    energy = energy_and_forces(context_of(system_of(atoms, force), atoms))[0]
    assert (
        abs(energy)
        < 100
        < 1000
        < abs(default_calculator("cpu", "float32").get_potential_energy(atoms))
    )
