"""Systems to measure on, reproducible, as plain arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import vesin
from ase import Atoms
from ase.build import bulk
from numpy.typing import NDArray

from benchmarks.systems import geometries
from mlff_triton.dynamics.structures import read_structure
from mlff_triton.neighbors.graph import Graph, concatenate
from mlff_triton.neighbors.neighbor_list import neighbor_list
from mlff_triton.testing import water_box
from mlff_triton.units import NM

DENSITY = 0.1  # atoms per Å^3, as in water
MIN_BOX = 10.0  # Å, twice the cutoff, as TorchMD-NET requires; smaller boxes become clusters
GRID = NM / 2**17  # Å; multiples up to 250 Å are exact in float32, both in Å and in nm


@dataclass(frozen=True)
class System:
    """One system, or several with the same cell.

    All coordinates are multiples of `GRID`, so that no implementation rounds its input.

    Attributes
    ----------
    numbers : int64 [N]
        Atomic numbers.
    positions : float64 [N, 3]
        Positions in Å.
    cell : float64 [3, 3] or None
        Lattice vectors of every system in Å, periodic in all directions; None for clusters.
    batch : int64 [N]
        System of each atom.
    """

    numbers: NDArray[np.int64]
    positions: NDArray[np.float64]
    cell: NDArray[np.float64] | None
    batch: NDArray[np.int64]

    @classmethod
    def of(cls, images: Sequence[Atoms]) -> System:
        """Batch images that share one cell."""
        periodic = images[0].pbc.all()
        return cls(
            np.concatenate([atoms.numbers for atoms in images]).astype(np.int64),
            _rounded(np.concatenate([atoms.positions for atoms in images])),
            _rounded(images[0].cell.array) if periodic else None,
            np.repeat(np.arange(len(images)), [len(atoms) for atoms in images]),
        )

    @property
    def n_atoms(self) -> int:
        """Number of atoms in all systems."""
        return len(self.numbers)

    @property
    def n_systems(self) -> int:
        """Number of systems."""
        return int(self.batch[-1]) + 1

    @property
    def cells(self) -> NDArray[np.float64] | None:
        """Cell of each system, [B, 3, 3]."""
        return None if self.cell is None else np.repeat(self.cell[None], self.n_systems, axis=0)

    @property
    def parts(self) -> list[NDArray[np.float64]]:
        """Positions of each system."""
        return np.split(self.positions, np.flatnonzero(np.diff(self.batch)) + 1)

    def graph(self, cutoff: float) -> Graph:
        """Return the neighbor list of all systems."""
        periodic = self.cell is not None
        return concatenate([neighbor_list(p, cutoff, self.cell, periodic) for p in self.parts])

    def count_edges(self, cutoff: float) -> int:
        """Count directed edges without building a graph, so that a million atoms fit in memory."""
        box = np.eye(3) if self.cell is None else self.cell
        search = vesin.NeighborList(cutoff=cutoff, full_list=False)
        found = [
            search.compute(p, box, self.cell is not None, quantities="i")[0] for p in self.parts
        ]
        return 2 * sum(len(index) for index in found)


def _rounded(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.round(values / GRID) * GRID


def random_box(n_atoms: int, seed: int = 0) -> System:
    """Place H, C, N and O at random sites of a distorted cubic grid, at the density of water."""
    rng = np.random.default_rng(seed)
    side = (n_atoms / DENSITY) ** (1 / 3)
    per_side = int(np.ceil(n_atoms ** (1 / 3) - 1e-9))
    sites = (np.array(np.unravel_index(range(per_side**3), (per_side,) * 3)).T + 0.5) / per_side
    occupied = np.sort(rng.permutation(per_side**3)[:n_atoms])
    numbers = rng.choice([1, 1, 8, 6, 7], n_atoms)
    positions = side * sites[occupied] + rng.uniform(-0.3, 0.3, (n_atoms, 3))
    return System.of([Atoms(numbers, positions, cell=[side] * 3, pbc=side > MIN_BOX)])


def water(n_molecules: int) -> System:
    """Build liquid water, as a droplet if the box would be too small."""
    atoms = water_box(n_molecules)
    atoms.pbc = atoms.cell.lengths().min() > MIN_BOX
    return System.of([atoms])


def crystal(name: str, structure: str, lattice: float, repeats: int) -> System:
    """Build a cubic crystal of ``8 repeats^3`` atoms, displaced at random."""
    atoms = bulk(name, structure, lattice, cubic=True).repeat(repeats)
    atoms.rattle(0.05, seed=0)
    return System.of([atoms])


def molecule(name: str) -> System:
    """Return one of the committed molecules."""
    return System.of([geometries.load()[name]])


def structure(name: str) -> System:
    """Return a structure that ships with the package."""
    return System.of([read_structure(name)])


def conformers(name: str, count: int) -> System:
    """Batch copies of one molecule, each with other random displacements."""
    molecule = geometries.load()[name]
    images = [molecule.copy() for _ in range(count)]
    for seed, atoms in enumerate(images):
        atoms.rattle(0.03, seed=seed)
    return System.of(images)
