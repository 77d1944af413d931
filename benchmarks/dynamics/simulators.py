"""Simulations of ASE and OpenMM in this process, with any forces. Nothing is logged or written."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from ase import Atoms, units
from ase.calculators.calculator import Calculator
from ase.md.langevin import Langevin
from ase.md.md import MolecularDynamics
from ase.md.verlet import VelocityVerlet

from benchmarks.calculators.openmm_forces import make_context
from benchmarks.dynamics.cases import FRICTION, TEMPERATURE, TIME_STEP
from benchmarks.dynamics.melted import FloatArray, Start
from benchmarks.engine.implementations import Outcome
from benchmarks.systems.systems import System
from mlff_triton.units import EV_TO_KJ_PER_MOL, NM

VELOCITY = 1000 * units.fs / NM  # nm/ps per unit of ASE
WALL = 1000.0  # kJ/mol/nm^2
LANGEVIN = {"temperature_K": TEMPERATURE, "friction": FRICTION / (1000 * units.fs)}


class Simulator(Protocol):
    """A simulation that goes on from call to call."""

    def reset(self) -> None:
        """Return to the start."""

    def advance(self, steps: int) -> None:
        """Make steps, all of which are done once PyTorch's device is."""

    def state(self) -> tuple[FloatArray, FloatArray]:
        """Return positions in Å and velocities in the units of ASE, once all steps are done."""

    def evaluate(self, system: System) -> Outcome:
        """Return energies and forces at other positions, where the simulation then is."""


class ASESimulator:
    """A simulation of ASE: Langevin, or velocity Verlet if there is no random stream."""

    def __init__(self, start: Start, calculator: Calculator, seed: int | None = 0) -> None:
        self._start = start
        (self._atoms,) = start.images()
        self._atoms.calc = calculator
        self._dynamics = _dynamics(self._atoms, seed)

    def reset(self) -> None:
        """Return to the start."""
        self._atoms.positions = self._start.system.positions
        self._atoms.set_velocities(self._start.velocities)

    def advance(self, steps: int) -> None:
        """Make steps."""
        self._dynamics.run(steps)

    def state(self) -> tuple[FloatArray, FloatArray]:
        """Return positions and velocities."""
        return self._atoms.get_positions(), self._atoms.get_velocities()

    def evaluate(self, system: System) -> Outcome:
        """Return energy and forces at other positions."""
        self._atoms.positions = system.positions
        energy, forces = self._atoms.get_potential_energy(), self._atoms.get_forces()
        return Outcome(torch.tensor([energy]).double(), torch.from_numpy(np.array(forces)))


def _dynamics(atoms: Atoms, seed: int | None) -> MolecularDynamics:
    time_step = TIME_STEP * units.fs
    if seed is None:
        return VelocityVerlet(atoms, time_step)
    rng = np.random.default_rng(seed)
    return Langevin(atoms, time_step, **LANGEVIN, fixcm=False, rng=rng)


class OpenMMSimulator:
    """A simulation of OpenMM with its Langevin integrator and one force, perhaps within a wall."""

    def __init__(self, start: Start, force: Any, platform: str) -> None:
        import openmm

        self._start = start
        self._integrator = openmm.LangevinMiddleIntegrator(TEMPERATURE, FRICTION, TIME_STEP / 1000)
        self._integrator.setRandomNumberSeed(1)
        forces = [force] if start.wall is None else [force, _wall(start.system, start.wall)]
        self._context = make_context(start.system, forces, self._integrator, platform)

    def reset(self) -> None:
        """Return to the start."""
        self._context.setPositions(self._start.system.positions / NM)
        self._context.setVelocities(self._start.velocities * VELOCITY)

    def advance(self, steps: int) -> None:
        """Make steps, and wait for OpenMM, which has its own context on the GPU."""
        self._integrator.step(steps)
        self._context.getState(velocities=True)

    def state(self) -> tuple[FloatArray, FloatArray]:
        """Return positions and velocities."""
        state = self._context.getState(positions=True, velocities=True)
        positions = state.getPositions(asNumpy=True)._value * NM
        return positions, state.getVelocities(asNumpy=True)._value / VELOCITY

    def evaluate(self, system: System) -> Outcome:
        """Return energy and forces at other positions, without those of a wall."""
        self._context.setPositions(system.positions / NM)
        state = self._context.getState(energy=True, forces=True, groups={0})
        energy = state.getPotentialEnergy()._value / EV_TO_KJ_PER_MOL
        forces = state.getForces(asNumpy=True)._value / (EV_TO_KJ_PER_MOL * NM)
        return Outcome(torch.tensor([energy]).double(), torch.from_numpy(forces))


def _wall(system: System, radius: float) -> Any:
    """Return a soft wall of a radius in Å around the center of a system, in force group 1."""
    import openmm

    force = openmm.CustomExternalForce(
        "stiffness * max(0, sqrt((x - x0)^2 + (y - y0)^2 + (z - z0)^2) - radius)^2"
    )
    force.addGlobalParameter("stiffness", WALL)
    force.addGlobalParameter("radius", radius / NM)
    for name, value in zip(("x0", "y0", "z0"), system.positions.mean(0) / NM, strict=True):
        force.addGlobalParameter(name, value)
    for atom in range(system.n_atoms):
        force.addParticle(atom)
    force.setForceGroup(1)
    return force
