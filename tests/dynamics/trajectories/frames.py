"""Frames of random structures, and all formats by name."""

from __future__ import annotations

import numpy as np
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator

from mlff_triton.dynamics.trajectories import Frame, open_trajectory

TRICLINIC = np.array([[20.0, 0.0, 0.0], [5.0, 18.0, 0.0], [3.0, -4.0, 16.0]])
CELLS = {
    "orthorhombic": {"cell": [20.0, 21.0, 22.0], "pbc": True},
    "triclinic": {"cell": TRICLINIC, "pbc": True},
    "slab": {"cell": [10.0, 12.0, 0.0], "pbc": (True, True, False)},
    "none": {},
    "not periodic": {"cell": [20.0, 21.0, 22.0], "pbc": False},
}
SUFFIXES = (".xyz", ".dcd", ".xtc")
INTERVAL = 100
TIMESTEP = 0.0005


def random_atoms(count=20, seed=0, cell="triclinic"):
    rng = np.random.default_rng(seed)
    numbers = np.random.default_rng(1).choice([1, 6, 7, 8, 17], count)
    atoms = Atoms(numbers, rng.uniform(-30, 30, (count, 3)), **CELLS[cell])
    atoms.set_momenta(rng.normal(size=(count, 3)))
    atoms.info["charge"] = 1
    atoms.calc = SinglePointCalculator(
        atoms, energy=rng.normal(), forces=rng.normal(size=(count, 3))
    )
    return atoms


def frame(index=0, **options):
    """Make the frame at step ``100 index``."""
    atoms = random_atoms(seed=index, **options)
    step = INTERVAL * index
    return frame_of(atoms, step, step * TIMESTEP, "nvt")


def frame_of(atoms, step, time_ps, stage):
    """Make a frame with the results of the calculator."""
    results = atoms.get_potential_energy(), atoms.get_forces()
    return Frame.of(atoms, step, time_ps, stage, *results)


def opened(path, size=0):
    file = open_trajectory(path, timestep_ps=TIMESTEP, interval=INTERVAL, size=size)
    file.cut()
    return file
