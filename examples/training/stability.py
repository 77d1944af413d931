"""Simulate a system at 300 K for 50 ps and report whether a bond ever broke.

Usage: ``python stability.py --structures structures.xyz --system aspirin --out aspirin.csv``

The systems are alanine dipeptide, aspirin and a periodic box of 64 waters, with a Langevin
thermostat. The file is updated after every picosecond.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np
from ase import Atoms, units
from ase.data import covalent_radii
from ase.geometry import find_mic
from ase.io import iread
from ase.md.langevinbaoab import LangevinBAOAB
from ase.optimize import FIRE
from numpy.typing import NDArray

from mlff_triton import TensorNetCalculator
from mlff_triton.errors import InputError
from mlff_triton.testing import water_box

BROKEN = 1.5  # relative to the start length
NAMES = {"alanine-dipeptide": "ac-ala-nme", "aspirin": "aspirin"}


class BondWatch:
    """Largest stretch of the bonds that a structure has at the start.

    Parameters
    ----------
    atoms : ase.Atoms
        Structure to watch. Two atoms are bonded if their distance is below 1.25 times the sum of
        their covalent radii.
    """

    def __init__(self, atoms: Atoms) -> None:
        self.atoms = atoms
        i, j = np.triu_indices(len(atoms), 1)
        radii = covalent_radii[atoms.numbers]
        bonded = self._lengths(i, j) < 1.25 * (radii[i] + radii[j])
        self.ends = i[bonded], j[bonded]
        self.start = self._lengths(*self.ends)
        self.stretch = 1.0

    def __call__(self) -> None:
        """Record the largest stretch of the current step."""
        self.stretch = max(self.stretch, float((self._lengths(*self.ends) / self.start).max()))

    def _lengths(self, i: NDArray[np.int64], j: NDArray[np.int64]) -> NDArray[np.float64]:
        delta = self.atoms.positions[i] - self.atoms.positions[j]
        if self.atoms.pbc.any():
            delta = find_mic(delta, self.atoms.cell, self.atoms.pbc)[0]
        lengths: NDArray[np.float64] = np.linalg.norm(delta, axis=1)
        return lengths


def start_structure(system: str, structures: Path) -> Atoms:
    """Return the named system. Water is built on a lattice, so the caller must relax it."""
    if system == "water-64":
        return water_box(64)
    for atoms in iread(structures):
        if atoms.info["name"] == NAMES[system]:
            return Atoms(atoms.numbers, atoms.positions)
    raise InputError(f"{structures} does not contain {NAMES[system]}: create it with structures.py")


def repartition_masses(atoms: Atoms, hydrogen_mass: float) -> None:
    """Change the mass of hydrogens, in u, at the expense of the atoms that they are bonded to.

    Averages do not depend on masses; slower hydrogens allow a longer time step.
    """
    masses = atoms.get_masses()
    distances = atoms.get_all_distances(mic=True)
    heavy = np.flatnonzero(atoms.numbers > 1)
    for hydrogen in np.flatnonzero(atoms.numbers == 1):
        partner = heavy[distances[hydrogen, heavy].argmin()]
        masses[partner] -= hydrogen_mass - masses[hydrogen]
        masses[hydrogen] = hydrogen_mass
    atoms.set_masses(masses)


def run(args: argparse.Namespace) -> None:
    """Simulate one system and write its state after every picosecond."""
    rng = np.random.default_rng(args.seed)
    atoms = start_structure(args.system, args.structures)
    atoms.calc = TensorNetCalculator(args.model)
    FIRE(atoms, logfile=None).run(fmax=0.3, steps=150)
    repartition_masses(atoms, args.hydrogen_mass)
    watch = BondWatch(atoms)
    dynamics = LangevinBAOAB(
        atoms,
        timestep=args.femtoseconds * units.fs,
        temperature_K=args.temperature,
        T_tau=500 * units.fs,
        rng=rng,
    )
    temperatures: list[float] = []
    dynamics.attach(watch)
    dynamics.attach(lambda: temperatures.append(atoms.get_temperature()))
    for picosecond in range(1, args.picoseconds + 1):
        dynamics.run(round(1000 / args.femtoseconds))
        write(args, len(atoms), picosecond, float(np.mean(temperatures)), watch.stretch)


def write(
    args: argparse.Namespace, n_atoms: int, picosecond: int, temperature: float, stretch: float
) -> None:
    """Write the results of all picoseconds so far, replacing the file."""
    row = {
        "system": args.system,
        "atoms": n_atoms,
        "picoseconds": picosecond,
        "femtoseconds_a_step": args.femtoseconds,
        "hydrogen_mass_u": args.hydrogen_mass,
        "mean_temperature_K": f"{temperature:.1f}",
        "largest_bond_stretch": f"{stretch:.4f}",
        "intact": "yes" if stretch < BROKEN else "no",
    }
    with args.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(row), lineterminator="\n")
        writer.writeheader()
        writer.writerow(row)


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--structures", type=Path, required=True)
    parser.add_argument("--system", choices=[*NAMES, "water-64"], required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="default")
    parser.add_argument("--picoseconds", type=int, default=50)
    parser.add_argument("--femtoseconds", type=float, default=1.0)
    parser.add_argument("--hydrogen-mass", type=float, default=1.008)
    parser.add_argument("--temperature", type=float, default=300.0)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    run(parse_arguments())
