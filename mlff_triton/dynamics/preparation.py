"""Preparation of a system before the first time step: minimization and initial velocities."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from ase import Atoms, units

MAX_FORCE = 0.05  # eV/Å
MAX_ITERATIONS = 200


@dataclass(frozen=True)
class Minimization:
    """Progress of a minimization.

    Attributes
    ----------
    iterations : int
        Number of iterations done.
    max_force : float
        Largest force on an atom, eV/Å.
    """

    iterations: int
    max_force: float

    @property
    def converged(self) -> bool:
        """True if the largest force is below 0.05 eV/Å."""
        return self.max_force < MAX_FORCE


def minimize(atoms: Atoms) -> Iterator[Minimization]:
    """Minimize the energy with up to 200 iterations of L-BFGS.

    Parameters
    ----------
    atoms : Atoms
        The system, with calculator. Modified in place.

    Yields
    ------
    Minimization
        The progress after each iteration.
    """
    from ase.optimize import LBFGS  # takes almost a second

    with LBFGS(atoms, logfile=None) as optimizer:  # type: ignore[arg-type] # None: no log
        for _ in optimizer.irun(fmax=MAX_FORCE, steps=MAX_ITERATIONS):
            force = float(np.linalg.norm(atoms.get_forces(), axis=1).max())
            yield Minimization(optimizer.nsteps, force)


def draw_momenta(atoms: Atoms, temperature: float, rng: np.random.Generator) -> None:
    """Draw momenta from the Maxwell-Boltzmann distribution, without overall motion.

    The total momentum is zero. Without periodic boundaries, the angular momentum is zero too. Both
    are projected out without rescaling, which yields the exact distribution under these
    constraints. A single atom keeps its momentum.

    Parameters
    ----------
    atoms : Atoms
        The system. Modified in place.
    temperature : float
        Temperature in K.
    rng : numpy.random.Generator
        Random stream.
    """
    masses = atoms.get_masses()[:, None]
    momenta = np.sqrt(masses * units.kB * temperature) * rng.standard_normal((len(atoms), 3))
    atoms.set_momenta(momenta)
    if len(atoms) > 1:
        remove_overall_motion(atoms)


def remove_overall_motion(atoms: Atoms) -> None:
    """Set the total momentum to zero and, without periodic boundaries, the angular momentum."""
    masses, momenta = atoms.get_masses()[:, None], atoms.get_momenta()
    momenta = momenta - masses * momenta.sum(axis=0) / masses.sum()
    if not atoms.pbc.any():
        momenta -= masses * _rotation(atoms, momenta)
    atoms.set_momenta(momenta)


def _rotation(atoms: Atoms, momenta: np.ndarray) -> np.ndarray:
    """Compute the velocities of the rigid rotation that has all the angular momentum.

    The pseudo-inverse of the inertia tensor also covers linear molecules.
    """
    arms = atoms.positions - atoms.get_center_of_mass()
    weighted = atoms.get_masses()[:, None] * arms
    inertia = (weighted * arms).sum() * np.eye(3) - weighted.T @ arms
    angular_momentum = np.cross(arms, momenta).sum(axis=0)
    angular_velocity = np.linalg.pinv(inertia, hermitian=True) @ angular_momentum
    return np.asarray(np.cross(angular_velocity, arms))
