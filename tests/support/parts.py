"""Systems divided into parts, and the sums of what the parts predict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from ase import Atoms
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from mlff_triton.engine.engine import Engine
from mlff_triton.engine.part import PartPrediction
from mlff_triton.model.prediction import Prediction
from mlff_triton.neighbors.box import Box
from mlff_triton.testing import assert_close


class Part(NamedTuple):
    """Own atoms and ghosts.

    Attributes
    ----------
    index : int64 [N]
        Atom of the whole system that each atom of the part is, own ones first.
    offsets : float64 [N, 3]
        Lattice translation of each atom, Å.
    n_own : int
        Number of own atoms.
    """

    index: NDArray[np.int64]
    offsets: NDArray[np.float64]
    n_own: int

    def positions(self, atoms: Atoms) -> NDArray[np.float64]:
        """Return the positions of own atoms and ghosts."""
        return atoms.positions[self.index] + self.offsets


def slabs(atoms: Atoms, n_parts: int) -> NDArray[np.int64]:
    """Return the part of each atom, int64 [N]: slabs along the first lattice vector, or x."""
    box = Box.of(atoms.cell.array, atoms.pbc)
    depth = (atoms.positions @ np.linalg.inv(box.cell))[:, 0]
    depth = depth % 1 if box.pbc[0] else (depth - depth.min()) / (np.ptp(depth) + 1e-9)
    return (depth * n_parts).astype(np.int64).clip(max=n_parts - 1)


def divide(atoms: Atoms, owners: NDArray[np.int64], reach: float, n_parts: int) -> list[Part]:
    """Give atoms to parts, and to each part all ghosts within the reach, in random order."""
    box = Box.of(atoms.cell.array, atoms.pbc)
    most = np.where(box.pbc, np.ceil(reach / box.heights) + 1, 0).astype(int)
    ranges = [np.arange(-m, m + 1) for m in most]
    images = np.stack(np.meshgrid(*ranges, indexing="ij"), -1).reshape(-1, 3)
    offsets = np.repeat(images @ box.cell, len(atoms), 0)
    index = np.tile(np.arange(len(atoms)), len(images))
    at_home = np.repeat(~images.any(1), len(atoms))
    rng = np.random.default_rng(0)
    parts = []
    for part in range(n_parts):
        is_own = at_home & (owners[index] == part)
        own = np.flatnonzero(is_own)
        points = atoms.positions[index] + offsets
        near = np.zeros(len(index), dtype=bool)
        if len(own):
            near = cKDTree(points[own]).query(points)[0] < reach
        ghosts = rng.permutation(np.flatnonzero(near & ~is_own))
        both = np.concatenate([own, ghosts])
        parts.append(Part(index[both], offsets[both], len(own)))
    return parts


Step = Callable[[Part, NDArray[np.float64]], PartPrediction]


def stepper(engine: Engine, atoms: Atoms, charge: int = 0) -> Step:
    """Return a function that computes any part of a system by one `SystemPart`."""
    system = engine.part(charge)

    def step(part: Part, positions: NDArray[np.float64]) -> PartPrediction:
        system.set_atoms(atoms.numbers[part.index], part.n_own, len(atoms))
        return system.step(positions, per_atom=True)

    return step


class Sums(NamedTuple):
    """Sums over all parts, named like `Prediction`, and virials per atom."""

    energy: float
    forces: NDArray[np.float64]
    virial: NDArray[np.float64]
    atom_energies: NDArray[np.float64]
    atom_virials: NDArray[np.float64]
    uncertainty: NDArray[np.float64] | None


def sum_of_parts(step: Step, atoms: Atoms, parts: Sequence[Part]) -> Sums:
    """Compute all parts, and send what they found for their ghosts home."""
    n_atoms, energy, virial = len(atoms), 0.0, np.zeros((3, 3))
    errors = np.full(n_atoms, np.nan)
    forces, energies, virials = np.zeros((n_atoms, 3)), np.zeros(n_atoms), np.zeros((n_atoms, 3, 3))
    for part in parts:
        found = step(part, part.positions(atoms))
        assert found.atom_virials is not None
        assert_close(found.atom_energies.sum(), found.energy, 0)
        assert_close(found.atom_virials.sum(0), found.virial, 1, floor=1e-3)
        energy += found.energy
        virial += found.virial
        energies[part.index[: part.n_own]] += found.atom_energies
        if found.uncertainty is not None:
            errors[part.index[: part.n_own]] = found.uncertainty
        np.add.at(forces, part.index, found.forces)
        np.add.at(virials, part.index, found.atom_virials)
    known = None if np.isnan(errors).all() else errors
    return Sums(energy, forces, virial, energies, virials, known)


def assert_whole(sums: Sums, whole: Prediction, dtype: torch.dtype = torch.float64) -> None:
    """Assert that parts add up to the whole system."""
    assert_close(sums.energy, whole.energy[0], 0, dtype)
    assert_close(sums.atom_energies, whole.atom_energies, 0, dtype)
    assert (sums.uncertainty is None) == (whole.uncertainty is None)
    if whole.uncertainty is not None:
        assert_close(sums.uncertainty, whole.uncertainty, 1, dtype)
    assert_close(sums.forces, whole.forces, 1, dtype, floor=1e-2)
    assert_close(sums.virial, whole.virial[0], 1, dtype, floor=1e-2)
