"""Small classical systems in OpenMM, of which a model with charges computes a part."""

from __future__ import annotations

import numpy as np
import openmm
from ase import Atoms
from openmm import app, unit
from openmmml import MLPotential

from mlff_triton.testing import water_box
from tests.support.charged import charged_model
from tests.support.openmm_systems import topology_of

WATER = {8: (-0.834, 0.3150752, 0.6364), 1: (0.417, 0.1, 0.0)}
"""Charge, sigma in nm and epsilon in kJ/mol by atomic number, as in TIP3P."""
METHODS = {
    "NoCutoff": openmm.NonbondedForce.NoCutoff,
    "CutoffNonPeriodic": openmm.NonbondedForce.CutoffNonPeriodic,
    "CutoffPeriodic": openmm.NonbondedForce.CutoffPeriodic,
    "Ewald": openmm.NonbondedForce.Ewald,
    "PME": openmm.NonbondedForce.PME,
}
PERIODIC = ("CutoffPeriodic", "Ewald", "PME")


def waters(n_molecules: int = 27) -> Atoms:
    """Return water in a box, without symmetry."""
    atoms = water_box(n_molecules, seed=3)
    atoms.rattle(0.03, seed=1)
    return atoms


def classical(
    atoms: Atoms,
    method: str = "PME",
    cutoff: float = 0.4,
    charges: np.ndarray | None = None,
    tolerance: float = 1e-4,
) -> openmm.System:
    """Make a System of flexible water; the cutoff is in nm.

    Parameters
    ----------
    atoms : ase.Atoms
        Molecules in the order O, H, H.
    method : str
        One of `METHODS`.
    cutoff : float
        nm.
    charges : [N], optional
        Elementary charges; by default those of TIP3P.
    tolerance : float
        Error tolerance of Ewald sums.
    """
    system = openmm.System()
    nonbonded, bonds = openmm.NonbondedForce(), openmm.HarmonicBondForce()
    angles = openmm.HarmonicAngleForce()
    for k, (number, mass) in enumerate(zip(atoms.numbers, atoms.get_masses(), strict=True)):
        system.addParticle(mass)
        charge, sigma, epsilon = WATER[int(number)]
        charge = charge if charges is None else float(charges[k])
        nonbonded.addParticle(charge, sigma, epsilon)
    for o in range(0, len(atoms), 3):
        for h in (o + 1, o + 2):
            bonds.addBond(o, h, 0.09572, 400000.0)
        angles.addAngle(o + 1, o, o + 2, 1.82421813418, 600.0)
        for first, second in ((o, o + 1), (o, o + 2), (o + 1, o + 2)):
            nonbonded.addException(first, second, 0.0, 1.0, 0.0)
    nonbonded.setNonbondedMethod(METHODS[method])
    nonbonded.setCutoffDistance(cutoff)
    nonbonded.setEwaldErrorTolerance(tolerance)
    for force in (nonbonded, bonds, angles):
        system.addForce(force)
    system.setDefaultPeriodicBoxVectors(*atoms.cell.array / 10)
    return system


def mixed(
    atoms: Atoms,
    system: openmm.System,
    part: list[int],
    model=None,
    embedding: str = "ml-charges",
    topology: app.Topology | None = None,
    **options,
) -> openmm.System:
    """Give a part of a System to a model, in float64 on the CPU."""
    potential = MLPotential("mlff-triton", modelPath=charged_model() if model is None else model)
    topology = topology_of(atoms) if topology is None else topology
    if not system.usesPeriodicBoundaryConditions():
        topology.setPeriodicBoxVectors(None)
    options = {"device": "cpu", "dtype": "float64", "embedding": embedding, **options}
    return potential.createMixedSystem(topology, system, part, **options)


def context_of(system: openmm.System, positions: np.ndarray, platform: str = "Reference"):
    """Make a Context, given positions in Å."""
    found = openmm.Platform.getPlatformByName(platform)
    context = openmm.Context(system, openmm.VerletIntegrator(0.00025), found)
    context.setPositions(positions / 10)
    return context


def energy_of(context: openmm.Context) -> float:
    """Return the potential energy in kJ/mol."""
    energy = context.getState(energy=True).getPotentialEnergy()
    return energy.value_in_unit(unit.kilojoule_per_mole)


def forces_of(context: openmm.Context) -> np.ndarray:
    """Return forces [N, 3] in kJ/mol/nm."""
    return np.array(context.getState(forces=True).getForces(asNumpy=True)._value)


def difference_forces(context: openmm.Context, positions: np.ndarray, atoms, step=1e-4):
    """Return forces [K, 3] on some atoms, by differences of the energy; positions are in Å."""
    forces = np.zeros((len(atoms), 3))
    for row, atom in enumerate(atoms):
        for d in range(3):
            energies = []
            for sign in (1, -1):
                moved = positions.copy()
                moved[atom, d] += sign * step
                context.setPositions(moved / 10)
                energies.append(energy_of(context))
            forces[row, d] = (energies[1] - energies[0]) / (2 * step / 10)
    context.setPositions(positions / 10)
    return forces
