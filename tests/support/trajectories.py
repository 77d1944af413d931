"""Labeled structures of the kinds that people train on: trajectories, displacements, scans."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from ase import Atoms, units
from ase.build import bulk, molecule
from ase.calculators.calculator import Calculator
from ase.calculators.emt import EMT
from ase.calculators.lj import LennardJones
from ase.calculators.morse import MorsePotential
from ase.calculators.singlepoint import SinglePointCalculator
from ase.md.verlet import VelocityVerlet
from ase.optimize import BFGS

Images = list[Atoms]


def labeled_copy(atoms: Atoms, energy: float | None = None, forces: object = None) -> Atoms:
    """Return a copy with labels: those given, or else what its calculator computes."""
    copy = atoms.copy()
    copy.calc = SinglePointCalculator(
        copy,
        energy=atoms.get_potential_energy() if energy is None else energy,
        forces=atoms.get_forces() if forces is None else forces,
    )
    return copy


def scaled(images: Sequence[Atoms], energy: float = 1.0, forces: float = 1.0) -> Images:
    """Return structures whose labels are multiplied by factors."""
    return [
        labeled_copy(a, energy * a.get_potential_energy(), forces * a.get_forces()) for a in images
    ]


def dynamics(
    atoms: Atoms, calculator: Calculator, kelvin: float, fs: float, every: int, count: int = 40
) -> Images:
    """Return frames of a simulation."""
    atoms = atoms.copy()
    atoms.calc = calculator
    rng = np.random.default_rng(0)
    masses = atoms.get_masses()[:, None]
    atoms.set_momenta(rng.normal(size=(len(atoms), 3)) * np.sqrt(2 * units.kB * kelvin * masses))
    steps, images = VelocityVerlet(atoms, fs * units.fs), []
    for _ in range(count):
        steps.run(every)
        images.append(labeled_copy(atoms))
    return images


def rattled(atoms: Atoms, calculator: Calculator, size: float, count: int = 30) -> Images:
    """Return randomly displaced copies."""
    images = []
    for seed in range(count):
        copy = atoms.copy()
        copy.rattle(size, seed=seed)
        copy.calc = calculator
        images.append(labeled_copy(copy))
    return images


def crystal() -> Atoms:
    """Return 32 atoms of copper, some of them on the faces of the cell."""
    return bulk("Cu", cubic=True) * (2, 2, 2)


def cluster() -> Atoms:
    """Return 13 atoms of argon, not in equilibrium."""
    return Atoms("Ar13", 3.8 * np.array([[k % 3, k // 3 % 3, k // 9] for k in range(13)]))


def argon() -> LennardJones:
    return LennardJones(sigma=3.4, epsilon=0.0104, rc=30.0)


def scan(step: float) -> Images:
    """Return nitrogen of growing bond lengths."""
    images = []
    for length in np.arange(0.9, 2.5, step):
        atoms = Atoms("N2", [[0, 0, 0], [0, 0, length]])
        atoms.calc = MorsePotential(epsilon=9.8, r0=1.1, rho0=3.0, rcut1=8, rcut2=9)
        images.append(labeled_copy(atoms))
    return images


def optimizations(count: int = 3) -> Images:
    """Return the steps of relaxations."""
    images: Images = []
    for seed in range(count):
        atoms = molecule("C2H6")
        atoms.rattle(0.1, seed=seed)
        atoms.calc = EMT()
        search = BFGS(atoms, logfile=None)
        search.attach(lambda atoms=atoms: images.append(labeled_copy(atoms)))
        search.run(fmax=0.05, steps=30)
    return images


def wrapped(images: Sequence[Atoms], shift: float = 0.0) -> Images:
    """Return structures moved by a shift and back into their cells."""
    found = []
    for atoms in images:
        copy = atoms.copy()
        copy.positions += shift
        copy.wrap()
        copy.calc = atoms.calc
        found.append(labeled_copy(copy, atoms.get_potential_energy(), atoms.get_forces()))
    return found


def permuted(images: Sequence[Atoms]) -> Images:
    """Return structures with their atoms in random orders."""
    rng, found = np.random.default_rng(0), []
    for atoms in images:
        order = rng.permutation(len(atoms))
        energy, forces = atoms.get_potential_energy(), atoms.get_forces()[order]
        found.append(labeled_copy(atoms[order], energy, forces))
    return found


def shuffled(images: Sequence[Atoms]) -> Images:
    return [images[k] for k in np.random.default_rng(0).permutation(len(images))]


def noisy(images: Sequence[Atoms], energy: float, forces: float) -> Images:
    """Return structures with noise of some size in their labels, in eV and eV/Å."""
    rng = np.random.default_rng(0)
    return [
        labeled_copy(
            a,
            a.get_potential_energy() + rng.normal(scale=energy),
            a.get_forces() + rng.normal(scale=forces, size=(len(a), 3)),
        )
        for a in images
    ]


def rounded(images: Sequence[Atoms], energy: float) -> Images:
    """Return structures whose energies are shifted, and their labels in float32."""
    return [
        labeled_copy(
            a,
            float(np.float32(a.get_potential_energy() + energy)),
            a.get_forces().astype(np.float32),
        )
        for a in images
    ]


def charged(images: Sequence[Atoms]) -> Images:
    """Return structures of which every other one is charged."""
    found = []
    for k, atoms in enumerate(images):
        found.append(labeled_copy(atoms, atoms.get_potential_energy() + 8.0 * (k % 2)))
        found[-1].info["charge"] = k % 2
    return found


def alternating(first: Sequence[Atoms], second: Sequence[Atoms]) -> Images:
    """Return the structures of two sets, one of each in turn."""
    return [atoms for pair in zip(first, second, strict=True) for atoms in pair]


def _cells() -> Images:
    """Return displaced crystals of the same atoms, in two alternating cells."""
    wide = crystal()
    wide.set_cell(1.03 * wide.cell.array, scale_atoms=True)
    return alternating(*(rattled(atoms, EMT(), 0.03, 20) for atoms in (crystal(), wide)))


def _molecules(count: int, size: float = 0.03) -> Images:
    names = ("H2O", "CH4", "C2H6", "NH3", "C2H2", "CH3OH", "C2H4", "H2CO")
    return [a for name in names for a in rattled(molecule(name), EMT(), size, count)]


def _hot(every: int) -> Images:
    return dynamics(cluster(), argon(), 600.0, 4.0, every)


def _liquid() -> Images:
    atoms = bulk("Ar", cubic=True, a=5.4) * (2, 2, 2)
    return dynamics(atoms, LennardJones(sigma=3.4, epsilon=0.0104, rc=5.0), 300.0, 5.0, 5)


CLEAR: dict[str, Callable[[], Images]] = {
    "frames": lambda: dynamics(molecule("C2H6"), EMT(), 300.0, 0.5, 4),
    "hot frames": lambda: _hot(4),
    "frames in random order": lambda: shuffled(dynamics(molecule("C2H6"), EMT(), 300.0, 0.5, 1)),
    "frames of a crystal": lambda: dynamics(crystal(), EMT(), 600.0, 4.0, 4),
    "frames of a liquid": _liquid,
    "displaced molecules": lambda: rattled(molecule("C2H6"), EMT(), 0.02),
    "displaced crystals": lambda: rattled(crystal(), EMT(), 0.04),
    "displaced crystals, atoms in the cell": lambda: wrapped(rattled(crystal(), EMT(), 0.04)),
    "a crystal that drifts": lambda: [
        atoms
        for k, image in enumerate(dynamics(crystal(), EMT(), 600.0, 4.0, 4))
        for atoms in wrapped([image], 0.01 * k)
    ],
    "alternating cells": _cells,
    "a scan": lambda: scan(0.05),
    "a coarse scan": lambda: scan(0.1),
    "relaxations": optimizations,
    "a few structures of each molecule": lambda: _molecules(4),
    "alternating charges": lambda: charged(dynamics(molecule("C2H6"), EMT(), 300.0, 0.5, 2)),
    "noise of DFT": lambda: noisy(rattled(crystal(), EMT(), 0.04), 2e-3, 2e-2),
    "float32": lambda: rounded(rattled(crystal(), EMT(), 0.04), -4e4),
}
"""Structures by which energies and forces can be compared."""

UNCLEAR: dict[str, Callable[[], Images]] = {
    "single structures": lambda: _molecules(1),
    "permuted atoms": lambda: permuted(rattled(molecule("C2H6"), EMT(), 0.05)),
    "frames far apart": lambda: _hot(20),
    "far displacements": lambda: rattled(crystal(), EMT(), 0.2),
    "few frames": lambda: dynamics(molecule("C2H6"), EMT(), 300.0, 0.5, 4, count=10),
    "more noise than signal": lambda: noisy(rattled(crystal(), EMT(), 0.01), 0.1, 0.1),
    "float32 of huge energies": lambda: rounded(rattled(molecule("C2H6"), EMT(), 0.005), -4e6),
}
"""Structures by which they cannot."""
