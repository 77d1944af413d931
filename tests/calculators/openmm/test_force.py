"""The force of OpenMM: equal to the ASE calculator, in every integrator, box, group and file."""

from __future__ import annotations

import copy
import functools
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import molecule

from mlff_triton import (
    Ensemble,
    TensorNet,
    TensorNetCalculator,
    TensorNetConfig,
    create_openmm_force,
    save_model,
)
from mlff_triton.calculators import explain_openmm_route
from mlff_triton.calculators.openmm import force as openmm_force
from mlff_triton.calculators.openmm.force import EngineForce
from mlff_triton.errors import BackendError, CheckpointError, InputError, UnknownElementError
from mlff_triton.testing import assert_within, random_cluster, random_crystal, water_box

openmm = pytest.importorskip("openmm", reason="OpenMM is an optional extra")
from openmm import app, unit  # noqa: E402
from openmm.app.internal.unitcell import reducePeriodicBoxVectors  # noqa: E402

EV = 96.48533212331001  # kJ/mol, as CODATA 2018 has it
EV_PER_ANGSTROM = 10 * EV  # kJ/mol/nm
DEVICES = {"Reference": "cpu", "CPU": "cpu", "CUDA": "cuda"}
PLATFORMS = ["Reference", "CPU", pytest.param("CUDA", marks=pytest.mark.gpu)]
DTYPES = ["float32", "float64"]
FS = 1e-3  # ps


@functools.cache
def small_model(seed: int = 0, elements: tuple[int, ...] = (1, 6, 7, 8)) -> TensorNet:
    torch.manual_seed(seed)
    config = TensorNetConfig(elements, hidden_channels=8, num_layers=1, num_rbf=8, cutoff_upper=4.0)
    model = TensorNet(config)
    for name, parameter in model.named_parameters():
        if not name.startswith("basis"):
            parameter.data += 0.1 * torch.randn_like(parameter)
    model.references = torch.arange(1.0, 1.0 + len(elements), dtype=torch.float64) * -(1.0 + seed)
    model.mean = torch.tensor(0.5, dtype=torch.float64)
    return model


@functools.cache
def default_calculator(device: str, dtype: str) -> TensorNetCalculator:
    return TensorNetCalculator(device=device, dtype=dtype)


def reduced(atoms: Atoms) -> Atoms:
    """The same crystal in box vectors as OpenMM wants them."""
    standard = atoms.copy()
    standard.set_cell(atoms.cell.standard_form()[0], scale_atoms=True)
    box = reducePeriodicBoxVectors([openmm.Vec3(*row) for row in standard.cell.array / 10])
    standard.set_cell(np.array(box.value_in_unit(unit.angstrom)))
    return standard


def system_of(atoms: Atoms, *forces) -> openmm.System:
    system = openmm.System()
    for mass in atoms.get_masses():
        system.addParticle(mass)
    if atoms.pbc.any():
        system.setDefaultPeriodicBoxVectors(*atoms.cell.array / 10)
    for force in forces:
        system.addForce(force)
    return system


def context_of(system, atoms, platform="Reference", integrator=None):
    """A Context with the positions of the atoms."""
    available = [openmm.Platform.getPlatform(k) for k in range(openmm.Platform.getNumPlatforms())]
    if platform not in [p.getName() for p in available]:
        pytest.skip(f"OpenMM has no {platform} platform here")
    context = openmm.Context(
        system,
        integrator or openmm.VerletIntegrator(0.5 * FS),
        openmm.Platform.getPlatformByName(platform),
        {"Precision": "double"} if platform == "CUDA" else {},
    )
    context.setPositions(atoms.positions / 10)
    return context


def force_for(atoms, model="default", **options):
    """A PythonForce, unless the options say otherwise."""
    defaults = {"periodic": bool(atoms.pbc.all()), "device": "cpu", "route": "python"}
    return create_openmm_force(atoms.numbers, model, **{**defaults, **options})


def energy_and_forces(context, groups=-1):
    state = context.getState(energy=True, forces=True, groups=groups)
    energy = state.getPotentialEnergy().value_in_unit(unit.kilojoule_per_mole)
    forces = state.getForces(asNumpy=True)
    return energy / EV, np.array(forces._value) / EV_PER_ANGSTROM


def now(context, atoms: Atoms) -> Atoms:
    """The atoms where the Context has them."""
    state = context.getState(positions=True)
    copied = atoms.copy()
    copied.positions = state.getPositions(asNumpy=True).value_in_unit(unit.angstrom)
    if atoms.pbc.any():
        copied.set_cell(state.getPeriodicBoxVectors(asNumpy=True).value_in_unit(unit.angstrom))
    return copied


def assert_as_ase(context, atoms, calculator, groups=-1):
    atoms = now(context, atoms)
    atoms.calc = calculator
    energy, forces = energy_and_forces(context, groups)
    assert energy == pytest.approx(atoms.get_potential_energy(), rel=1e-6)
    assert_within(forces, atoms.get_forces(), 1e-6)


def rattled(name: str) -> Atoms:
    atoms = molecule(name)
    atoms.rattle(0.05, seed=0)
    return atoms


STRUCTURES = {
    "molecule": rattled("CH3CH2OH"),
    "water": water_box(8),
    "triclinic": reduced(random_crystal(12, "triclinic", seed=2)),
    "small": reduced(random_crystal(3, "small", seed=3)),
}


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


def topology_of(atoms: Atoms) -> app.Topology:
    """Every three atoms a molecule, bonded to its first."""
    topology = app.Topology()
    chain = topology.addChain()
    for start in range(0, len(atoms), 3):
        residue = topology.addResidue("MOL", chain)
        made = [
            topology.addAtom(f"X{k}", app.Element.getByAtomicNumber(int(number)), residue)
            for k, number in enumerate(atoms.numbers[start : start + 3])
        ]
        for atom in made[1:]:
            topology.addBond(made[0], atom)
    if atoms.pbc.any():
        topology.setPeriodicBoxVectors([openmm.Vec3(*row) for row in atoms.cell.array / 10])
    return topology


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
    """Springs twice a step, the model once."""
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
    """Each goes the way that it goes alone, to the bit: they share an engine."""
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


def test_steps_from_another_thread():
    atoms = STRUCTURES["molecule"]
    integrator = openmm.VerletIntegrator(0.5 * FS)
    context = context_of(system_of(atoms, force_for(atoms)), atoms, "CPU", integrator)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(integrator.step, 5).result()
    assert_as_ase(context, atoms, default_calculator("cpu", "float32"))


def test_nve_conserves_energy():
    """Methanol at about 300 K, 0.05 ps: the energy ripples with the time step and stays."""
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


# Files


def test_checkpoints_go_on_to_the_bit():
    atoms = STRUCTURES["water"]
    system = system_of(atoms, force_for(atoms))

    def start():
        integrator = openmm.LangevinMiddleIntegrator(300.0, 1.0, 0.5 * FS)
        integrator.setRandomNumberSeed(5)
        return context_of(system, atoms, integrator=integrator), integrator

    context, integrator = start()
    integrator.step(7)
    checkpoint = context.createCheckpoint()
    integrator.step(10)
    expected = now(context, atoms).positions
    for _ in range(2):  # in this Context, and in a new one
        context.loadCheckpoint(checkpoint)
        integrator.step(10)
        assert np.array_equal(now(context, atoms).positions, expected)
        context, integrator = start()


def models_in(folder):
    path = folder / "model.safetensors"
    save_model(small_model(), path)
    return {
        "name": "tensornet-gfn2",
        "path": path,
        "relative path": "model.safetensors",
        "model": small_model(),
        "ensemble": Ensemble([small_model(1), small_model(2)]),
    }


@pytest.mark.parametrize("kind", ["name", "path", "relative path", "model", "ensemble"])
def test_systems_are_written_and_read(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    atoms = STRUCTURES["water"]
    model = models_in(tmp_path)[kind]
    part = [3, 4, 5, 0]
    force = force_for(
        atoms, model, dtype="float64", particles=part, force_group=2, remove_references=True
    )
    system = system_of(atoms, force)
    text = openmm.XmlSerializer.serialize(system)
    monkeypatch.chdir("/")
    read = openmm.XmlSerializer.deserialize(text)
    again = read.getForce(0)
    assert isinstance(again, openmm.PythonForce)
    assert again.usesPeriodicBoundaryConditions()
    assert (again.getForceGroup(), again.getName()) == (2, "mlff_triton")
    assert list(again.getParticles()) == part
    expected = energy_and_forces(context_of(system, atoms))
    actual = energy_and_forces(context_of(read, atoms))
    assert actual[0] == expected[0]
    assert np.array_equal(actual[1], expected[1])
    assert openmm.XmlSerializer.serialize(read) == text


def test_a_model_that_is_gone_is_said_at_the_first_step(tmp_path):
    """Not when the file is read, since OpenMM crashes if that fails."""
    atoms = STRUCTURES["water"]
    path = models_in(tmp_path)["path"]
    text = openmm.XmlSerializer.serialize(system_of(atoms, force_for(atoms, path)))
    path.unlink()
    context = context_of(openmm.XmlSerializer.deserialize(text), atoms)
    with pytest.raises(openmm.OpenMMException, match="CheckpointError: there is no model") as error:
        context.getState(energy=True)
    assert "\n" not in str(error.value)


def test_default_is_written_by_the_name_of_the_model():
    """So that a file means the same if another model becomes the default."""
    force = EngineForce(openmm_force.Recipe("default", np.array([8])))
    assert force.__reduce__()[1][0].model == "default"
    assert openmm_force.lasting_model("default") == "tensornet-gfn2"


def test_a_model_given_is_copied():
    model = copy.deepcopy(small_model())
    atoms = STRUCTURES["water"]
    system = system_of(atoms, force_for(atoms, model))
    expected = energy_and_forces(context_of(system, atoms))
    model.readout.linear.weight.data.zero_()
    copied = copy.deepcopy(system)
    for one in (system, copied):
        energy, forces = energy_and_forces(context_of(one, atoms))
        assert energy == expected[0]
        assert np.array_equal(forces, expected[1])


def test_reporters(tmp_path):
    atoms = STRUCTURES["water"]
    topology = topology_of(atoms)
    simulation = app.Simulation(
        topology,
        system_of(atoms, create_openmm_force(topology, device="cpu", remove_references=True)),
        openmm.LangevinMiddleIntegrator(300.0, 1.0, 0.5 * FS),
        openmm.Platform.getPlatformByName("CPU"),
    )
    simulation.context.setPositions(atoms.positions / 10)
    log, trajectory = tmp_path / "log.csv", tmp_path / "trajectory.dcd"
    simulation.reporters += [
        app.StateDataReporter(str(log), 2, step=True, potentialEnergy=True, density=True),
        app.DCDReporter(str(trajectory), 2),
        app.CheckpointReporter(str(tmp_path / "checkpoint"), 4),
    ]
    simulation.step(6)
    del simulation
    steps, energies, _ = np.loadtxt(log, delimiter=",", skiprows=1).T
    assert steps.tolist() == [2, 4, 6]
    assert len(set(energies)) == 3
    assert trajectory.stat().st_size > 3 * 12 * len(atoms)
    assert (tmp_path / "checkpoint").stat().st_size > 0


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
        < 10
        < 1000
        < abs(default_calculator("cpu", "float32").get_potential_energy(atoms))
    )


# Routes


@pytest.fixture
def obstacle(monkeypatch):
    """Say what is in the way of TorchForce."""

    def say(reason):
        monkeypatch.setattr(openmm_force, "_torch_obstacle", lambda: reason)

    return say


def test_auto_takes_what_costs_less(obstacle):
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    obstacle(None)
    for device, expected in ((gpu, "torch"), (cpu, "python")):
        route, reason = openmm_force.choose_route("auto", device)
        assert route == expected
        assert reason
    obstacle("OpenMM-Torch is not installed")
    route, reason = openmm_force.choose_route("auto", gpu)
    assert route == "python"
    assert "not installed" in reason


def test_route_asked_for_is_taken_or_refused(obstacle):
    atoms, device = STRUCTURES["water"], torch.device("cpu")
    obstacle(None)
    assert openmm_force.choose_route("torch", device)[0] == "torch"
    assert openmm_force.choose_route("python", device)[0] == "python"
    obstacle("OpenMM-Torch is not installed")
    with pytest.raises(BackendError, match="is not installed; use route='python'"):
        force_for(atoms, route="torch")
    with pytest.raises(InputError, match="use one of auto, python, torch"):
        force_for(atoms, route="fast")


def test_route_is_explained_in_a_line():
    line = explain_openmm_route("cpu")
    assert line.startswith("python: ")
    assert "\n" not in line


# What is refused


def topology_with(element, bonded=True):
    topology = topology_of(STRUCTURES["water"])
    ion = topology.addResidue("ION", next(topology.chains()))
    atom = topology.addAtom("NA", app.Element.getBySymbol(element), ion)
    if bonded:
        topology.addBond(next(topology.atoms()), atom)
    return topology


WATER = topology_of(STRUCTURES["water"])
BAD = {
    "no indices": ({"particles": []}, InputError, "particles is empty"),
    "too large": ({"particles": [0, 24]}, InputError, "no particle 24: the atoms are 0 to 23"),
    "negative": ({"particles": [-1]}, InputError, "no particle -1"),
    "twice": ({"particles": [0, 1, 2, 1]}, InputError, "atom 1 more than once"),
    "fractions": ({"particles": [0.5, 1]}, InputError, "must be a list of indices"),
    "a mask": ({"particles": [True, False]}, InputError, "must be a list of indices"),
    "names": ({"particles": "HOH"}, InputError, "must be a list of indices"),
    "one index": ({"particles": 3}, InputError, "must be a list of indices"),
    "nested": ({"particles": [[0, 1]]}, InputError, "must be a list of indices"),
    "a bond cut": (
        {"particles": [0, 1, 2, 3, 4]},
        InputError,
        r"from atom 3 \(X0 of MOL 2\) to atom 5 \(X2 of MOL 2\).*createMixedSystem",
    ),
    "element": (
        {"topology_or_numbers": topology_with("Na")},
        UnknownElementError,
        r"not know Na, which atom 24 \(NA of ION 9\) is; it knows H, C, N, O, S",
    ),
    "element of a number": (
        {"topology_or_numbers": [8, 1, 92]},
        UnknownElementError,
        "not know U, which atom 2 is",
    ),
    "number of none": ({"topology_or_numbers": [8, 0]}, UnknownElementError, "atomic number 0"),
    "no atoms": ({"topology_or_numbers": []}, InputError, "give an openmm.app.Topology"),
    "empty topology": ({"topology_or_numbers": app.Topology()}, InputError, "has no atoms"),
    "a path": ({"topology_or_numbers": "box.pdb"}, InputError, "give an openmm.app.Topology"),
    "symbols": ({"topology_or_numbers": ["H", "O"]}, InputError, "give an openmm.app.Topology"),
    "charge": ({"charge": 0.5}, InputError, "must be an integer"),
    "no charges": ({"charge": 1}, InputError, "made for neutral systems"),
    "periodicity": ({"periodic": (True, True, False)}, InputError, "True or False"),
    "group": ({"force_group": 32}, InputError, "from 0 to 31"),
    "dtype": ({"dtype": "float16"}, InputError, "float32, float64"),
    "device": ({"device": "quantum"}, InputError, "'auto', 'cpu' or 'cuda'"),
    "backend": ({"backend": "fast"}, BackendError, "use 'auto'"),
    "skin": ({"skin": -1.0}, InputError, "skin must be"),
    "no model": ({"model": 3}, InputError, "a name, a path or a model"),
    "model": ({"model": "missing.ckpt"}, CheckpointError, "no model 'missing.ckpt'"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_when_the_force_is_made(case):
    options, error, message = BAD[case]
    with pytest.raises(error, match=message) as refusal:
        create_openmm_force(**{"topology_or_numbers": WATER, "device": "cpu", **options})
    assert "\n" not in str(refusal.value)


def test_an_element_outside_the_part_does_not_matter():
    topology = topology_with("Na", bonded=False)
    create_openmm_force(topology, particles=range(24), device="cpu")


def test_unknown_keywords_are_refused():
    with pytest.raises(TypeError):
        create_openmm_force([8, 1, 1], precision="high")


TROUBLES = {
    "NaN": (lambda x: x.__setitem__((4, 1), np.nan), "InputError: the position of atom 4 is NaN"),
    "infinity": (
        lambda x: x.__setitem__((4, 1), -np.inf),
        "InputError: the position of atom 4 is NaN",
    ),
    "overlap": (lambda x: x.__setitem__(2, x[1]), "OverlappingAtomsError: atoms 1 and 2"),
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_troubles_on_the_way_are_one_line(trouble):
    spoil, message = TROUBLES[trouble]
    atoms = STRUCTURES["molecule"]
    context = context_of(system_of(atoms, force_for(atoms, small_model())), atoms)
    expected = energy_and_forces(context)
    bad = atoms.positions / 10
    spoil(bad)
    context.setPositions(bad)
    with pytest.raises(openmm.OpenMMException, match=f"mlff_triton: {message}") as error:
        context.getState(energy=True)
    assert "\n" not in str(error.value)
    context.setPositions(atoms.positions / 10)
    energy, forces = energy_and_forces(context)
    assert energy == expected[0]
    assert np.array_equal(forces, expected[1])


def test_a_message_says_how_atoms_are_counted():
    atoms = STRUCTURES["molecule"]
    force = force_for(atoms, small_model(), particles=[3, 4, 5])
    atoms = atoms.copy()
    atoms.positions[4] = atoms.positions[3]
    context = context_of(system_of(atoms, force), atoms)
    with pytest.raises(openmm.OpenMMException, match=r"atoms 0 and 1 .*\(.*within particles\)"):
        context.getState(energy=True)


def test_a_system_of_other_size_is_said():
    atoms = STRUCTURES["molecule"]
    context = context_of(system_of(atoms, create_openmm_force([8, 1, 1], device="cpu")), atoms)
    with pytest.raises(openmm.OpenMMException, match=r"9 particles, .* for 3 atoms"):
        context.getState(energy=True)


def test_ctrl_c_is_said(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    atoms = STRUCTURES["molecule"]
    context = context_of(system_of(atoms, force_for(atoms, small_model())), atoms)
    monkeypatch.setattr(EngineForce, "compute", interrupted)
    with pytest.raises(openmm.OpenMMException, match="interrupted from the keyboard"):
        context.getState(energy=True)


# Without OpenMM


def printed_by(code: str) -> str:
    done = subprocess.run(  # noqa: S603 - the code is below
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_calculators_load_what_is_asked_for():
    code = """
import sys
import mlff_triton.calculators
print(*sorted({"torch", "ase", "openmm"} & sys.modules.keys()))
"""
    assert printed_by(code) == ""


def test_missing_openmm_is_said():
    code = """
import sys
sys.modules["openmm"] = None  # importing it raises ImportError
from mlff_triton import create_openmm_force
from mlff_triton.errors import BackendError
try:
    create_openmm_force([8, 1, 1])
except BackendError as error:
    print(error)
"""
    line = printed_by(code)
    assert "pip install 'mlff-triton[openmm]'" in line
    assert "\n" not in line
