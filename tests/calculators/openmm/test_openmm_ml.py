"""The potential of openmm-ml: whole systems, and mixed ones, partly computed by the model."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from ase import Atoms

import mlff_triton
from mlff_triton import (
    TensorNet,
    TensorNetCalculator,
    TensorNetConfig,
    create_openmm_force,
    save_model,
)
from mlff_triton.errors import CheckpointError, InputError, UnknownElementError
from mlff_triton.testing import assert_within, water_box

openmm = pytest.importorskip("openmm", reason="OpenMM is an optional extra")
pytest.importorskip("openmmml", reason="openmm-ml is an optional extra")
from openmm import app, unit  # noqa: E402
from openmmml import MLPotential  # noqa: E402

from tests.support.solvated_peptide import PEPTIDE, force_field, solvated  # noqa: E402

EV = 96.48533212331001  # kJ/mol, as CODATA 2018 has it
ROOT = Path(mlff_triton.__file__).parents[1]
GUIDE = ROOT / "docs" / "openmm.md"
ML_GROUP = 7
PLATFORMS = ["Reference", "CPU"]


@functools.cache
def small_model() -> TensorNet:
    torch.manual_seed(0)
    config = TensorNetConfig(
        (1, 6, 7, 8), hidden_channels=8, num_layers=1, num_rbf=8, cutoff_upper=4.0
    )
    model = TensorNet(config)
    for name, parameter in model.named_parameters():
        if not name.startswith("basis"):
            parameter.data += 0.1 * torch.randn_like(parameter)
    return model


def potential(model=None) -> MLPotential:
    return MLPotential("mlff-triton", modelPath=small_model() if model is None else model)


def classical(topology, method=app.PME, **options):
    cutoff = {} if method == app.NoCutoff else {"nonbondedCutoff": 0.9 * unit.nanometer}
    return force_field().createSystem(
        topology, nonbondedMethod=method, constraints=app.HBonds, **cutoff, **options
    )


def mixed(system, atoms=range(22), model=None, **options):
    return potential(model).createMixedSystem(
        solvated()[0], system, list(atoms), forceGroup=ML_GROUP, device="cpu", **options
    )


def context_of(system, positions, platform="CPU", box=None):
    context = openmm.Context(
        system, openmm.VerletIntegrator(0.0005), openmm.Platform.getPlatformByName(platform)
    )
    if box is not None:
        context.setPeriodicBoxVectors(*box)
    context.setPositions(positions)
    context.computeVirtualSites()
    return context


def energy_of(context, groups=-1) -> float:
    state = context.getState(energy=True, groups=groups)
    return state.getPotentialEnergy().value_in_unit(unit.kilojoule_per_mole)


def forces_of(context, groups=-1) -> np.ndarray:
    return np.array(context.getState(forces=True, groups=groups).getForces(asNumpy=True)._value)


def atoms_of(context, numbers, indices) -> Atoms:
    """Return some particles as atoms of ASE with the calculator."""
    state = context.getState(positions=True)
    positions = state.getPositions(asNumpy=True).value_in_unit(unit.angstrom)[list(indices)]
    cell = state.getPeriodicBoxVectors(asNumpy=True).value_in_unit(unit.angstrom)
    atoms = Atoms(numbers, positions, cell=cell, pbc=True)
    atoms.calc = TensorNetCalculator(small_model(), device="cpu")
    return atoms


def numbers_of(topology) -> list[int]:
    return [atom.element.atomic_number for atom in topology.atoms()]


# Whole systems


def water_topology(atoms: Atoms) -> app.Topology:
    topology = app.Topology()
    chain = topology.addChain()
    for start in range(0, len(atoms), 3):
        residue = topology.addResidue("HOH", chain)
        for k, number in enumerate(atoms.numbers[start : start + 3]):
            topology.addAtom(f"X{k}", app.Element.getByAtomicNumber(int(number)), residue)
    topology.setPeriodicBoxVectors([openmm.Vec3(*row) for row in atoms.cell.array / 10])
    return topology


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("periodic", [None, False])
def test_a_whole_system(platform, periodic):
    atoms = water_box(8)
    system = MLPotential("mlff-triton").createSystem(
        water_topology(atoms), device="cpu", dtype="float64", periodic=periodic
    )
    assert system.usesPeriodicBoundaryConditions() == (periodic is None)
    context = context_of(system, atoms.positions / 10, platform)
    if periodic is False:
        atoms.pbc = False
    atoms.calc = TensorNetCalculator(device="cpu", dtype="float64")
    assert energy_of(context) / EV == pytest.approx(atoms.get_potential_energy(), rel=1e-6)
    assert_within(forces_of(context) / (10 * EV), atoms.get_forces(), 1e-6)


def test_a_path_and_a_charge(tmp_path):
    path = tmp_path / "model.safetensors"
    save_model(small_model(), path)
    atoms = water_box(8)
    atoms.info["charge"] = -1
    atoms.calc = TensorNetCalculator(path, device="cpu")
    system = potential(path).createSystem(water_topology(atoms), device="cpu", charge=-1)
    context = context_of(system, atoms.positions / 10, "Reference")
    assert energy_of(context) / EV == pytest.approx(atoms.get_potential_energy(), rel=1e-6)


def test_examples_of_the_guide_agree(monkeypatch):
    """A System of openmm-ml and one with our force, as the first two examples make them."""
    first, second = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)[:2]
    monkeypatch.chdir(ROOT)
    namespace = {}
    exec(first, namespace)  # noqa: S102 - as a reader would
    context = namespace["simulation"].context
    assert context.getStepCount() == 100
    assert np.isfinite(energy_of(context))
    forces = forces_of(context)
    exec(second, namespace)  # noqa: S102 - as a reader would
    namespace["context"].setPositions(context.getState(positions=True).getPositions())
    assert_within(forces_of(namespace["context"], {1}), forces, 1e-6)


# Mixed systems


@pytest.mark.parametrize("platform", PLATFORMS)
def test_the_part_is_the_models(platform):
    topology, positions = solvated()
    system = mixed(classical(topology))
    (force,) = [force for force in system.getForces() if force.getForceGroup() == ML_GROUP]
    assert (force.getName(), list(force.getParticles())) == ("mlff_triton", list(range(22)))
    context = context_of(system, positions, platform)
    atoms = atoms_of(context, numbers_of(topology)[:22], range(22))
    energy = energy_of(context, {ML_GROUP}) / EV
    assert energy == pytest.approx(atoms.get_potential_energy(), rel=1e-6)
    forces = forces_of(context, {ML_GROUP}) / (10 * EV)
    assert_within(forces[:22], atoms.get_forces(), 1e-6)
    assert not forces[22:].any()


def test_the_classical_part_is_untouched():
    """Without a cutoff, it is the whole minus the peptide, with the same forces on the water."""
    topology, positions = solvated()
    whole = classical(topology, app.NoCutoff)
    context = context_of(mixed(whole), positions, "Reference")
    before = context_of(whole, positions, "Reference")
    peptide = app.PDBFile(str(PEPTIDE)).topology
    alone = context_of(classical(peptide, app.NoCutoff), positions[:22], "Reference")
    others = set(range(32)) - {ML_GROUP}
    expected = energy_of(before) - energy_of(alone)
    assert energy_of(context, others) == pytest.approx(expected, rel=1e-9)
    assert_within(forces_of(context, others)[22:], forces_of(before)[22:], 1e-9)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_interpolation_has_the_pure_ends(platform):
    topology, positions = solvated()
    whole = classical(topology)
    between = context_of(mixed(whole, interpolate=True), positions, platform)
    ends = [context_of(system, positions, platform) for system in (whole, mixed(whole))]
    energies = [energy_of(context) for context in ends]
    tolerance = 1e-5 * max(map(abs, energies))  # openmm-ml's Coulomb constant has nine digits
    for value, context, energy in zip((0.0, 1.0), ends, energies, strict=True):
        between.setParameter("lambda_interpolate", value)
        assert energy_of(between) == pytest.approx(energy, abs=tolerance)
        assert_within(forces_of(between), forces_of(context), 1e-5)
    between.setParameter("lambda_interpolate", 0.25)
    mean = 0.75 * energies[0] + 0.25 * energies[1]
    assert energy_of(between) == pytest.approx(mean, abs=tolerance)


def test_bonds_that_are_cut_are_capped():
    """Two bonds leave the middle residue, and a hydrogen atom replaces the end of each."""
    topology, positions = solvated()
    part = [atom.index for atom in topology.atoms() if atom.residue.name == "ALA"]
    info = mixed(classical(topology), part, returnInfo=True)
    (force,) = [f for f in info["system"].getForces() if f.getForceGroup() == ML_GROUP]
    particles = list(force.getParticles())
    assert particles == [*part, len(positions), len(positions) + 1]
    context = context_of(info["system"], np.vstack([positions, np.zeros((2, 3))]), "Reference")
    numbers = np.array(numbers_of(info["topology"]))
    atoms = atoms_of(context, numbers[particles], particles)
    assert atoms.get_chemical_symbols()[-2:] == ["H", "H"]
    caps = atoms.get_all_distances()[-2:, :-2].min(axis=1)
    assert ((caps > 0.9) & (caps < 1.2)).all()
    energy = energy_of(context, {ML_GROUP}) / EV
    assert energy == pytest.approx(atoms.get_potential_energy(), rel=1e-6)
    assert np.isfinite(forces_of(context)).all()


def test_mixed_systems_run_with_a_barostat():
    topology, positions = solvated()
    system = mixed(classical(topology), model="default", charge=0)
    barostat = openmm.MonteCarloBarostat(1.0, 300.0, 1)
    integrator = openmm.LangevinMiddleIntegrator(300.0, 1.0, 0.0005)
    for random in (barostat, integrator):
        random.setRandomNumberSeed(1)
    system.addForce(barostat)
    context = openmm.Context(system, integrator, openmm.Platform.getPlatformByName("CPU"))
    context.setPositions(positions)
    openmm.LocalEnergyMinimizer.minimize(context, maxIterations=5)
    context.setVelocitiesToTemperature(300.0, 1)
    integrator.step(4)
    state = context.getState(energy=True, positions=True)
    assert state.getPeriodicBoxVectors()[0] != topology.getPeriodicBoxVectors()[0]
    assert np.isfinite(state.getPotentialEnergy()._value)


def test_systems_are_written_and_read():
    topology, positions = solvated()
    system = mixed(classical(topology), interpolate=True)
    read = openmm.XmlSerializer.deserialize(openmm.XmlSerializer.serialize(system))
    energies = {energy_of(context_of(s, positions, "Reference")) for s in (system, read)}
    assert len(energies) == 1


# What is refused


def test_unknown_options_are_refused():
    topology = solvated()[0]
    with pytest.raises(InputError, match="does not know modelpath: it takes modelPath"):
        MLPotential("mlff-triton", modelpath="model.ckpt")
    with pytest.raises(InputError, match="precision is unknown: the options are charge, device"):
        potential().createSystem(topology, precision="single")
    with pytest.raises(InputError, match="cutoff is unknown"):
        mixed(classical(topology), cutoff=1.0)


def test_embeddings_options_are_left_to_them():
    topology, _ = solvated()
    part = [atom.index for atom in topology.atoms() if atom.residue.name == "ALA"]
    distances = [(6, 4, 0.1 * unit.nanometer)]
    mixed(classical(topology), part, linkAtomDistances=distances)
    with pytest.raises(ValueError, match="mlLongRange"):  # a TensorNet sets it itself
        mixed(classical(topology), mlLongRange=False)


def test_what_does_not_fit_is_refused():
    topology = solvated()[0]
    with pytest.raises(CheckpointError, match=r"no model 'missing.ckpt'"):
        potential("missing.ckpt").createSystem(topology)
    with pytest.raises(InputError, match="neutral"):
        potential("default").createSystem(topology, charge=1)
    ion = app.Topology()
    ion.addAtom("Na", app.Element.getBySymbol("Na"), ion.addResidue("NA", ion.addChain()))
    with pytest.raises(UnknownElementError, match=r"not know Na, which atom 0 \(Na of NA 1\) is"):
        potential("default").createSystem(ion)
    alone = classical(app.PDBFile(str(PEPTIDE)).topology, app.NoCutoff)
    with pytest.raises(InputError, match="the System has 22 particles"):
        mixed(alone)


# Imports


@pytest.mark.parametrize("first", ["openmmml", "mlff_triton.calculators.openmm.potential"])
def test_either_package_may_be_imported_first(first):
    code = f"import {first}; from openmmml import MLPotential; print(MLPotential('mlff-triton'))"
    done = subprocess.run(  # noqa: S603 - the code is above
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


def test_openmm_ml_does_not_load_pytorch_for_us():
    code = "import sys, openmmml; print('torch' in sys.modules)"
    done = subprocess.run(  # noqa: S603 - the code is above
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.strip() == "False"


def test_a_model_does_not_count_twice():
    topology, _ = solvated()
    system = classical(topology)
    part = list(range(22))
    system.addForce(create_openmm_force(topology, small_model(), particles=part, device="cpu"))
    with pytest.raises(InputError, match="already has a force of mlff_triton for these atoms"):
        potential().createMixedSystem(topology, system, part, device="cpu")
    other = [atom.index for atom in list(topology.residues())[5].atoms()]
    mixed = potential().createMixedSystem(topology, system, other, device="cpu")
    assert [force.getName() for force in mixed.getForces()].count("mlff_triton") == 2
