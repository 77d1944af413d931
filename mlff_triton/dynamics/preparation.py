"""Before the first step: relax the structure, draw velocities."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from ase import Atoms, units
from ase.optimize import LBFGS

MAX_FORCE = 0.05  # eV/Å
MAX_ITERATIONS = 200


@dataclass(frozen=True)
class Minimization:
    """How far a minimisation has come.

    Attributes
    ----------
    iterations : int
        Steps taken.
    max_force : float
        Largest force on an atom, eV/Å.
    """

    iterations: int
    max_force: float

    @property
    def converged(self) -> bool:
        """Whether the largest force is below 0.05 eV/Å."""
        return self.max_force < MAX_FORCE


def minimize(atoms: Atoms) -> Iterator[Minimization]:
    """Relax positions with L-BFGS, up to 200 steps; yields after each.

    Parameters
    ----------
    atoms : Atoms
        With calculator; changed in place.
    """
    with LBFGS(atoms, logfile=None) as optimizer:  # type: ignore[arg-type] # None is silence
        for _ in optimizer.irun(fmax=MAX_FORCE, steps=MAX_ITERATIONS):
            force = float(np.linalg.norm(atoms.get_forces(), axis=1).max())
            yield Minimization(optimizer.nsteps, force)


def draw_momenta(atoms: Atoms, temperature: float, rng: np.random.Generator) -> None:
    """Draw momenta from the Maxwell-Boltzmann distribution, at rest as a whole.

    The total momentum is zero and, without periodic boundaries, so is the angular momentum. Both
    are projected out, without scaling: what remains is exactly the distribution under that
    condition. A single atom keeps its momentum.

    Parameters
    ----------
    atoms : Atoms
        Changed in place.
    temperature : float
        K.
    rng : numpy.random.Generator
        Random stream.
    """
    masses = atoms.get_masses()[:, None]
    momenta = np.sqrt(masses * units.kB * temperature) * rng.standard_normal((len(atoms), 3))
    if len(atoms) > 1:
        momenta -= masses * momenta.sum(axis=0) / masses.sum()
        if not atoms.pbc.any():
            momenta -= masses * _rotation(atoms, momenta)
    atoms.set_momenta(momenta)


def _rotation(atoms: Atoms, momenta: np.ndarray) -> np.ndarray:
    """Velocities of the rigid rotation that holds all angular momentum; linear molecules too."""
    arms = atoms.positions - atoms.get_center_of_mass()
    weighted = atoms.get_masses()[:, None] * arms
    inertia = (weighted * arms).sum() * np.eye(3) - weighted.T @ arms
    angular_momentum = np.cross(arms, momenta).sum(axis=0)
    angular_velocity = np.linalg.pinv(inertia, hermitian=True) @ angular_momentum
    return np.asarray(np.cross(angular_velocity, arms))
