"""Pairs of close structures of the same atoms, and how their energies and forces compare.

Between structures a and b that are close, the energy changes by the work against the mean force:
``E_b - E_a = -(F_a + F_b) / 2 . (x_b - x_a)``. This is the trapezoid rule, with an error of the
third order in the displacement.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.spatial import cKDTree

from mlff_triton.training.frames import Array, Frames
from mlff_triton.training.splits import PRECISION

SMALLEST, LARGEST = 1e-3, 0.3
"""Largest displacement in Å of an atom between close structures."""
BLOCK = 64  # structures that are kept or left out together, because neighbors may be consecutive
MOST_FRAMES, MOST_ATOMS = 50_000, 2_000_000  # that are searched
DIMENSIONS = 6  # of the projected space in which neighbors are sought
FAR_APART = 1e6  # Å between the projections of structures of different atoms


@dataclass(frozen=True)
class ClosePairs:
    """P pairs of close structures of the same atoms.

    Attributes
    ----------
    first, second : int64 [P]
        Indices of the structures.
    change : float64 [P]
        Energy of the second structure relative to the first in eV.
    work : float64 [P]
        The same change according to the forces, in eV.
    scale : float64 [P]
        Norm of the mean force times that of the displacement, in eV, above 0; the work is between
        plus and minus this.
    """

    first: Array
    second: Array
    change: Array
    work: Array
    scale: Array

    def __len__(self) -> int:
        return len(self.first)

    def select(self, chosen: Array) -> ClosePairs:
        """Return some pairs, by their indices or a mask."""
        return ClosePairs(**{name: array[chosen] for name, array in vars(self).items()})


def close_pairs(frames: Frames, part: Array) -> ClosePairs:
    """Find pairs of close structures of the same atoms, in the same order, charge and cell.

    Candidates are consecutive structures, and nearest neighbors in a projection of configuration
    space. Of many structures, evenly spaced blocks are searched.

    Parameters
    ----------
    frames : Frames
        All structures.
    part : int64 [C]
        Part of the data that each structure belongs to, such as its file. Blocks are within parts
        where possible, so that small parts are searched as well.

    Returns
    -------
    ClosePairs
    """
    key = _atoms_and_cell(frames)
    order = _evenly(frames, np.lexsort((np.arange(len(frames)), key, part)))
    follows = np.flatnonzero(key[order[1:]] == key[order[:-1]])
    pairs = np.stack([order[follows], order[follows + 1]], axis=1)
    pairs = np.concatenate([pairs, _nearest(frames, order, key)])
    pairs = np.unique(np.sort(pairs, axis=1), axis=0)
    return _compared(frames, *pairs.T)


def _atoms_and_cell(frames: Frames) -> Array:
    """Return a hash of the properties that comparable structures share, uint64 [C]."""
    rng = np.random.default_rng(0)

    def factors(count: int) -> Array:
        return rng.integers(1, 2**63, count, dtype=np.uint64)

    n_atoms = frames.n_atoms
    local = np.arange(len(frames.numbers)) - np.repeat(frames.start[:-1], n_atoms)
    terms = frames.numbers.astype(np.uint64) * factors(int(n_atoms.max()))[local]
    cell = np.where(frames.pbc[:, :, None], frames.cell, 0.0).reshape(-1, 9)
    others = np.column_stack([n_atoms, frames.charge, frames.pbc, np.rint(cell / PRECISION)])
    of_others = others.astype(np.int64).view(np.uint64) @ factors(others.shape[1])
    return np.asarray(np.add.reduceat(terms, frames.start[:-1]) + of_others)


def _evenly(frames: Frames, order: Array) -> Array:
    """Return an order of structures, or evenly spaced blocks of it if there are many."""
    most = min(MOST_FRAMES, int(MOST_ATOMS / frames.n_atoms.mean()))
    blocks = -(-len(order) // BLOCK)
    wanted = max(most // BLOCK, 1)
    if blocks <= wanted:
        return order
    kept = np.zeros(blocks, dtype=bool)
    kept[np.linspace(0, blocks - 1, wanted).astype(np.int64)] = True
    return np.asarray(order[kept[np.arange(len(order)) // BLOCK]])


def _nearest(frames: Frames, chosen: Array, key: Array) -> Array:
    """Return the nearest neighbor of each structure among those of its atoms, int64 [n, 2]."""
    _, first, number = np.unique(key[chosen], return_index=True, return_inverse=True)
    moved = _displacements(frames, chosen[first[number]], chosen)
    lengths = frames.n_atoms[chosen]
    start = np.cumsum(lengths) - lengths
    local = np.arange(len(moved)) - np.repeat(start, lengths)
    rng = np.random.default_rng(0)
    columns = [FAR_APART * number]
    for _ in range(DIMENSIONS):
        direction = rng.normal(size=(int(lengths.max()), 3))
        columns.append(np.add.reduceat((moved * direction[local]).sum(axis=1), start))
    space = np.column_stack(columns)
    _, found = cKDTree(space).query(space, k=min(2, len(space)))
    pairs = np.stack([np.repeat(np.arange(len(space)), found[0].size), found.ravel()], axis=1)
    alike = (number[pairs[:, 0]] == number[pairs[:, 1]]) & (pairs[:, 0] != pairs[:, 1])
    return np.asarray(chosen[pairs[alike]])


def _displacements(frames: Frames, first: Array, second: Array) -> Array:
    """Return how atoms move between structures, along the shortest path through the cell."""
    moved = frames.positions[frames.atoms_of(second)] - frames.positions[frames.atoms_of(first)]
    pbc, cell = frames.pbc[first], frames.cell[first]
    periodic = pbc.any(axis=1)
    if not periodic.any():
        return np.asarray(moved)
    inverse = np.zeros_like(cell)
    inverse[periodic] = np.linalg.pinv(np.where(pbc[:, :, None], cell, 0.0)[periodic])
    owner = np.repeat(np.arange(len(first)), frames.n_atoms[first])
    turns = np.rint(np.einsum("ni,nij->nj", moved, inverse[owner]))
    return np.asarray(moved - np.einsum("ni,nij->nj", turns, cell[owner]))


def _compared(frames: Frames, first: Array, second: Array) -> ClosePairs:
    """Return the energies and forces of the pairs that are close."""
    if not len(first):
        return ClosePairs(first, second, *np.zeros((3, 0)))
    moved = _displacements(frames, first, second)
    forces = frames.forces[frames.atoms_of(first)] + frames.forces[frames.atoms_of(second)]
    start = np.cumsum(frames.n_atoms[first]) - frames.n_atoms[first]
    squares, of_force = ((array**2).sum(axis=1) for array in (moved, forces / 2))
    farthest = np.sqrt(np.maximum.reduceat(squares, start))
    scale = np.sqrt(np.add.reduceat(squares, start) * np.add.reduceat(of_force, start))
    work = -np.add.reduceat((forces / 2 * moved).sum(axis=1), start)
    change = frames.energy[second] - frames.energy[first]
    kept = (farthest >= SMALLEST) & (farthest <= LARGEST) & (scale > 0)
    return ClosePairs(first, second, change, work, scale).select(kept)
