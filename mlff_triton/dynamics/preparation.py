"""Preparation of systems before the first time step: checks, minimization, initial velocities."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from ase import Atoms, units
from ase.calculators.calculator import Calculator

from mlff_triton._common.torch_settings import using_threads
from mlff_triton.calculators._fixed_atoms import fixed_atoms
from mlff_triton.calculators._screening import warn_of_changing_cells
from mlff_triton.calculators._total_charge import noted_charge
from mlff_triton.dynamics.conditions import check_ensembles, minimizing
from mlff_triton.dynamics.failures import warn_of_time_step
from mlff_triton.dynamics.outputs import trajectory_names
from mlff_triton.dynamics.pace import Pace
from mlff_triton.dynamics.settings import Settings
from mlff_triton.dynamics.systems import make_dynamics, put_state, repartition_masses, state_of
from mlff_triton.dynamics.threads import choose_threads
from mlff_triton.dynamics.trajectories import check_trajectory
from mlff_triton.engine.motion import Dynamics
from mlff_triton.errors import InputError

MAX_FORCE = 0.05  # eV/Å
MAX_ITERATIONS = 2000
SINGULAR = 1e-9
"""Smallest moment of inertia, relative to the largest one, that exceeds rounding errors."""


@dataclass(frozen=True)
class Minimization:
    """Progress of a minimization of one or several systems.

    Attributes
    ----------
    iterations : int
        Largest number of iterations of any system so far.
    max_force : float
        Largest force on an atom of any system, eV/Å.
    """

    iterations: int
    max_force: float

    @property
    def converged(self) -> bool:
        """True if the largest force is below 0.05 eV/Å."""
        return self.max_force < MAX_FORCE


def take_systems(
    atoms: Atoms | Sequence[Atoms], calculator: Calculator, settings: Settings
) -> tuple[list[Atoms], Settings]:
    """Copy the structures of a new run, and check that they suit its settings.

    Parameters
    ----------
    atoms : Atoms or sequence of Atoms
        The structure or structures.
    calculator : Calculator
        Their calculator.
    settings : Settings
        Settings of the run.

    Returns
    -------
    list of Atoms
        The systems, with the masses of the run.
    Settings
        The same settings, with a number of threads.

    Raises
    ------
    InputError
        If a structure does not suit the settings, has a constraint that does more than fix atoms,
        or has an energy that is not finite.

    Warns
    -----
    UnknownChemistryWarning
        If the model learned from molecules in vacuum, and the pressure is constant.
    """
    systems = [atoms.copy()] if isinstance(atoms, Atoms) else [one.copy() for one in atoms]
    if not systems:
        raise InputError("there are no structures: give at least one")
    check_ensembles(systems, settings)
    if settings.keep_velocities and not all(atoms.has("momenta") for atoms in systems):
        raise InputError("a structure has no velocities: leave out --keep-velocities")
    if settings.threads is None:
        threads = choose_threads(sum(len(atoms) for atoms in systems))
        settings = replace(settings, threads=threads)
    names = trajectory_names(settings, len(systems))
    for name, system in zip(names, systems, strict=True):
        system.info |= noted_charge(system)
        check_trajectory(name, system)
        if settings.hydrogen_mass is not None:
            repartition_masses(system, settings.hydrogen_mass)
        system.calc = calculator
        with using_threads(settings.threads):
            energy = system.get_potential_energy()
        if not np.isfinite(energy):
            raise InputError("the energy of a structure is NaN or infinite: check its geometry")
    warn_of_time_step(systems, settings.timestep)
    warn_of_densities(calculator, settings)
    return systems, settings


def warn_of_densities(calculator: Calculator, settings: Settings) -> None:
    """Warn about constant pressure if the model is known to have learned from molecules in vacuum.

    Warns
    -----
    UnknownChemistryWarning
    """
    if any(stage.ensemble == "npt" for stage in settings.stages):
        warn_of_changing_cells(calculator, stacklevel=5)


def minimize(
    atoms: Atoms | Sequence[Atoms], dynamics: Dynamics | None = None, pace: Pace | None = None
) -> Iterator[Minimization]:
    """Minimize the energy of each system with up to 2000 iterations of FIRE.

    All systems are minimized at the same time, each with its own time step, and each stays at rest
    once it has converged. FIRE takes up to twice as many iterations as L-BFGS, but each is little
    work on the GPU, and neither other systems nor the size of blocks change any result.

    Parameters
    ----------
    atoms : Atoms or sequence of Atoms
        The systems, with the same calculator. Modified in place at the end.
    dynamics : Dynamics, optional
        Moves these systems; by default, the dynamics of their calculator.
    pace : Pace, optional
        Size of blocks of iterations.

    Yields
    ------
    Minimization
        The progress after each block of iterations.
    """
    systems = [atoms] if isinstance(atoms, Atoms) else atoms
    moves, pace = dynamics or make_dynamics(systems, systems[0].calc), pace or Pace()
    start = state_of(systems)
    start = replace(start, velocities=np.zeros_like(start.velocities))
    observation = moves.begin(start, minimizing(len(systems), MAX_FORCE), is_continued=False)
    queued: deque[int] = deque()
    last = 0
    pace.start(last)
    while last < MAX_ITERATIONS or queued:
        while last < MAX_ITERATIONS and len(queued) < moves.depth:
            last = min(last + pace.block, MAX_ITERATIONS)
            moves.queue(last, is_observed=True)
            queued.append(last)
        observation = moves.collect() or observation
        pace.look(queued.popleft())
        iterations, max_force = observation.progress.max(axis=0).tolist()
        progress = Minimization(int(iterations), max_force)
        yield progress
        if progress.converged:
            break
    for _ in queued:  # the GPU is still busy with them, but nothing moves any more
        observation = moves.collect() or observation
    put_state(observation.state, systems)


def draw_momenta(atoms: Atoms, temperature: float, rng: np.random.Generator) -> None:
    """Draw momenta from the Maxwell-Boltzmann distribution, without overall motion.

    The total momentum is zero. Without periodic boundaries, the angular momentum is zero too. Both
    are projected out without rescaling, which yields the exact distribution under these
    constraints. A single atom keeps its momentum. Fixed atoms are at rest; the others then keep
    their overall motion, because it is not conserved.

    Parameters
    ----------
    atoms : Atoms
        The system. Modified in place.
    temperature : float
        Temperature in K.
    rng : numpy.random.Generator
        Random stream.
    """
    masses, fixed = atoms.get_masses()[:, None], fixed_atoms(atoms)
    momenta = np.sqrt(masses * units.kB * temperature) * rng.standard_normal((len(atoms), 3))
    momenta[fixed] = 0
    atoms.set_momenta(momenta)
    if len(atoms) > 1 and not fixed.any():
        remove_overall_motion(atoms)


def remove_overall_motion(atoms: Atoms) -> None:
    """Set the total momentum to zero and, without periodic boundaries, the angular momentum."""
    masses, momenta = atoms.get_masses()[:, None], atoms.get_momenta()
    momenta = momenta - masses * momenta.sum(axis=0) / masses.sum()
    if not atoms.pbc.any():
        momenta -= masses * _rotation(atoms, momenta)
    atoms.set_momenta(momenta)


def _rotation(atoms: Atoms, momenta: np.ndarray) -> np.ndarray:
    """Compute the velocities of the rigid rotation with the same angular momentum.

    The pseudo-inverse of the inertia tensor omits an axis about which almost nothing turns, as in a
    linear molecule whose positions were rounded in a file.
    """
    arms = atoms.positions - atoms.get_center_of_mass()
    weighted = atoms.get_masses()[:, None] * arms
    inertia = (weighted * arms).sum() * np.eye(3) - weighted.T @ arms
    angular_momentum = np.cross(arms, momenta).sum(axis=0)
    angular_velocity = np.linalg.pinv(inertia, SINGULAR, hermitian=True) @ angular_momentum
    return np.asarray(np.cross(angular_velocity, arms))
