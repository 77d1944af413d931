"""Small structures with the energies, forces and stresses of a Morse potential."""

from __future__ import annotations

import numpy as np
from ase import Atoms
from ase.build import bulk
from ase.calculators.morse import MorsePotential
from ase.calculators.singlepoint import SinglePointCalculator

REFERENCES = {29: -100.0, 47: -250.0}  # eV


def labeled(count: int, *, periodic: bool = False, seed: int = 0) -> list[Atoms]:
    """Return random clusters of copper and silver, or displaced cells of copper."""
    rng = np.random.default_rng(seed)
    return [_labeled(_cell(rng) if periodic else _cluster(rng)) for _ in range(count)]


def _cluster(rng: np.random.Generator) -> Atoms:
    size = int(rng.integers(3, 6))
    corners = np.array([[x, y, z] for x in (0, 1) for y in (0, 1) for z in (0, 1)])
    positions = 2.7 * corners[:size] + rng.normal(scale=0.15, size=(size, 3))
    return Atoms(rng.choice([29, 47], size), positions)


def _cell(rng: np.random.Generator) -> Atoms:
    atoms = bulk("Cu", cubic=True)
    atoms.set_cell(atoms.cell.array @ (np.eye(3) + rng.normal(scale=0.02, size=(3, 3))), True)
    atoms.positions += rng.normal(scale=0.1, size=(4, 3))
    return atoms


def _labeled(atoms: Atoms) -> Atoms:
    atoms.calc = MorsePotential(epsilon=0.343, r0=2.7, rho0=3.9, rcut1=3.5, rcut2=4.0)
    results = {"energy": atoms.get_potential_energy(), "forces": atoms.get_forces()}
    results["energy"] += sum(REFERENCES[z] for z in atoms.numbers)
    if atoms.pbc.all():
        results["stress"] = atoms.get_stress()
    atoms.calc = SinglePointCalculator(atoms, **results)
    return atoms
