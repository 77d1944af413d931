from __future__ import annotations

import numpy as np
import pytest
import torch

from mlff_triton.kernels.electrostatics.pme_energy import pme_energy
from mlff_triton.kernels.electrostatics.reference import pme_energy as reference
from mlff_triton.kernels.electrostatics.types import PMEParameters
from mlff_triton.neighbors.neighbor_list import neighbor_list
from mlff_triton.testing import assert_close, random_crystal, water_box
from mlff_triton.units import EV_TO_KJ_PER_MOL, NM

openmm = pytest.importorskip("openmm", reason="OpenMM is not installed")


def openmm_forces(charges, positions, cell, parameters):
    """Return the energy in eV and the forces in eV/Å by OpenMM's reference platform."""
    system, force = openmm.System(), openmm.NonbondedForce()
    system.setDefaultPeriodicBoxVectors(*(cell / NM))
    force.setNonbondedMethod(force.PME)
    force.setCutoffDistance(parameters.cutoff / NM)
    force.setPMEParameters(parameters.splitting * NM, *parameters.mesh)
    force.setUseDispersionCorrection(False)
    for charge in charges:
        system.addParticle(1.0)
        force.addParticle(charge, 1.0, 0.0)
    system.addForce(force)
    platform = openmm.Platform.getPlatformByName("Reference")
    context = openmm.Context(system, openmm.VerletIntegrator(0.001), platform)
    context.setPositions(positions / NM)
    state = context.getState(getEnergy=True, getForces=True)
    energy = state.getPotentialEnergy()._value / EV_TO_KJ_PER_MOL
    return energy, state.getForces(asNumpy=True)._value / EV_TO_KJ_PER_MOL / NM


def box(name):
    """Return charges, positions and a cell in OpenMM's reduced form."""
    if name == "water":
        atoms = water_box(27)
        charges = np.tile([-0.834, 0.417, 0.417], 27)
        return charges, atoms.positions, np.asarray(atoms.cell)
    atoms = random_crystal(60, "cubic", seed=5)
    charges = np.random.default_rng(1).uniform(-1, 1, len(atoms))
    cell = np.asarray(atoms.cell)
    if name == "triclinic":
        shear = np.array([[1.0, 0.0, 0.0], [0.2, 1.0, 0.0], [-0.15, 0.1, 1.0]])
        return charges, atoms.positions @ shear, cell @ shear
    return charges, atoms.positions, cell


@pytest.mark.parametrize("name", ["water", "charged", "triclinic"])
def test_energies_and_forces_are_openmms(name, device):
    """Both differ from Ewald sums by the same errors, as OpenMM's splines have order five, too."""
    charges, positions, cell = box(name)
    heights = 1 / np.linalg.norm(np.linalg.inv(cell), axis=0)
    parameters = PMEParameters(0.7, 0.45 * heights.min(), (24, 28, 32), 5)
    energy, forces = openmm_forces(charges, positions, cell, parameters)
    graph = neighbor_list(positions, parameters.cutoff, cell, True).to(device)
    lists = graph.row_ptr, graph.senders, graph.shifts
    for operator in (pme_energy, reference.pme_energy):
        leaf = torch.tensor(positions, device=device, requires_grad=True)
        atoms = torch.tensor(charges, device=device), leaf, torch.tensor(cell, device=device)[None]
        found = operator(*atoms, None, *lists, parameters).energy
        (gradient,) = torch.autograd.grad(found.sum(), leaf)
        assert_close(found, [energy], 1)
        assert_close(-gradient, forces, 1)
