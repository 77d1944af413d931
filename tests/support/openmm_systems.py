"""Systems, Contexts and forces of OpenMM, and their comparison with the ASE calculator."""

from __future__ import annotations

import functools

import numpy as np
import openmm
import pytest
import torch
from ase import Atoms
from ase.build import molecule
from openmm import app, unit
from openmm.app.internal.unitcell import reducePeriodicBoxVectors

from mlff_triton import TensorNet, TensorNetCalculator, TensorNetConfig, create_openmm_force
from mlff_triton.testing import assert_within, random_crystal, water_box

EV = 96.48533212331001  # kJ/mol, from CODATA 2018
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
    """Return the same crystal in the reduced box vectors of OpenMM."""
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
    """Make a Context with the positions of the atoms."""
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
    """Make a force, by default a PythonForce on the CPU."""
    defaults = {"periodic": bool(atoms.pbc.all()), "device": "cpu", "route": "python"}
    return create_openmm_force(atoms.numbers, model, **{**defaults, **options})


def energy_and_forces(context, groups=-1):
    state = context.getState(energy=True, forces=True, groups=groups)
    energy = state.getPotentialEnergy().value_in_unit(unit.kilojoule_per_mole)
    forces = state.getForces(asNumpy=True)
    return energy / EV, np.array(forces._value) / EV_PER_ANGSTROM


def now(context, atoms: Atoms) -> Atoms:
    """Return the atoms with positions and cell of a Context."""
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


def topology_of(atoms: Atoms) -> app.Topology:
    """Make a topology of three atoms per molecule, bonded to the first."""
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
