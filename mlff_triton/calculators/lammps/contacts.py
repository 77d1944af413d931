"""Check in each step of a run that atoms do not overlap.

A search for nearest neighbors also finds the clearance: the distance left before any pair is in
contact. No atoms can have met until one of them has moved by half of it.

Kernels on a GPU compare the distances of all neighbors while they find edges. A search is then made
only at the beginning of a run, and to name the atoms that a kernel has found.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.spatial import cKDTree

from mlff_triton.calculators._plausibility import check_distances, contact_limits
from mlff_triton.engine.batch import Batch, IntArray
from mlff_triton.errors import InputError, OverlappingAtomsError
from mlff_triton.neighbors.box import FloatArray

MOST_CLEARANCE = 0.6
"""Å; pairs whose distance exceeds the smallest possible one by more are not searched for."""
ATOMS_PER_THREAD = 4096
ROUNDING = 1 + 1e-9
"""Factor of the limits of kernels, so that these find all contacts that a search finds."""


class ContactChecks:
    """Check that own atoms are not far too close to one another or to ghosts."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Make the next check search for pairs, because atoms or their order may have changed."""
        self._clearance = 0.0

    def may_exist(self, own: FloatArray, cell: FloatArray) -> bool:
        """Return False if no atom has moved far enough since the last search to meet another.

        Parameters
        ----------
        own : float64 [n_own, 3]
            Positions of own atoms, at least one, in Å.
        cell : float64 [3, 3]
            Lattice vectors as rows, which separate atoms from their images, Å.
        """
        if not self._clearance:
            return True
        moved = np.subtract(own, self._own, out=self._moved)
        farthest = math.sqrt(3) * max(moved.max(), -moved.min())
        approach = 2 * farthest + np.abs(cell - self._cell).sum()
        return not approach < self._clearance  # True for NaN

    def search(
        self,
        numbers: IntArray,
        positions: FloatArray,
        cell: FloatArray,
        n_own: int,
        labels: IntArray,
        *,
        step: int | None,
    ) -> None:
        """Search for contacts.

        Parameters
        ----------
        numbers, positions, n_own, labels
            Same as for `find_clearance`.
        cell : float64 [3, 3]
            Same as for `may_exist`.
        step : int or None
            Step of a run that led to these positions; None at the beginning of a run.

        Raises
        ------
        InputError, OverlappingAtomsError
            If two atoms are too close, or a position is not finite.
        """
        try:
            self._clearance = find_clearance(numbers, positions, n_own, labels)
        except InputError as error:
            if step is None:
                raise
            problem = str(error).partition(": ")[0]
            raise type(error)(
                f"{problem} in step {step}: take a shorter time step, or minimize first"
            ) from None
        self._own, self._cell = positions[:n_own].copy(), cell
        self._moved = np.empty_like(self._own)


def find_clearance(numbers: IntArray, positions: FloatArray, n_own: int, labels: IntArray) -> float:
    """Return a lower bound of all differences between distances and the smallest possible ones.

    The nearest neighbor of each own atom counts as one of the largest element, unless these would
    be in contact.

    Parameters
    ----------
    numbers : int64 [N]
        Atomic numbers of own atoms, at least one, and of ghosts.
    positions : float64 [N, 3]
        Å.
    n_own : int
        Number of own atoms.
    labels : int64 [N]
        IDs of atoms for messages.

    Returns
    -------
    float
        Å, at most `MOST_CLEARANCE`.

    Raises
    ------
    InputError, OverlappingAtomsError
        If two atoms are too close, or a position is not finite.
    """
    own = positions[:n_own]
    _check_finite(own, labels)
    limits = contact_limits(numbers)
    reach = 2 * limits.max() + MOST_CLEARANCE
    near = np.concatenate([np.arange(n_own), n_own + _near(own, positions[n_own:], reach)])
    points, limits = positions[near], limits[near]
    tree = cKDTree(points, balanced_tree=False, compact_nodes=False)
    n_threads = min(torch.get_num_threads(), 1 + n_own // ATOMS_PER_THREAD)
    found = tree.query(own, k=2, distance_upper_bound=reach, workers=n_threads)
    distances, nearest = found[0][:, 1], found[1]  # the first one is the atom itself
    bounds = distances - limits[:n_own] - limits.max()
    is_suspect = bounds <= 0
    clearance = float(bounds.min(initial=MOST_CLEARANCE, where=~is_suspect))
    if not is_suspect.any():
        return clearance

    def refuse(pair: IntArray) -> None:
        atoms = near[np.sort(pair)]
        _refuse(Batch.of(numbers[atoms], positions[atoms]), labels[atoms])

    refuse(nearest[distances.argmin()])  # so that no atom has very many neighbors
    i, j = _pairs(tree, np.flatnonzero(is_suspect), limits, clearance)
    differences = np.linalg.norm(points[i] - points[j], axis=1) - limits[i] - limits[j]
    smallest = float(differences.min(initial=clearance))
    if smallest > 0:
        return smallest
    closest = differences.argmin()
    refuse(np.array([i[closest], j[closest]]))
    return 0.0


def _pairs(
    tree: cKDTree, atoms: IntArray, limits: FloatArray, clearance: float
) -> tuple[IntArray, IntArray]:
    """Return all pairs of some atoms that may be in contact or within a clearance of it."""
    neighbors = tree.query_ball_point(tree.data[atoms], limits[atoms] + limits.max() + clearance)
    i = np.repeat(atoms, [len(found) for found in neighbors])
    j = np.concatenate(neighbors).astype(np.int64)
    return i[i != j], j[i != j]


def _check_finite(own: FloatArray, labels: IntArray) -> None:
    """Raise `InputError` if a position is not finite."""
    with np.errstate(all="ignore"):
        if math.isfinite(own.sum()):  # one fast pass, which rarely fails
            return
    is_lost = ~np.isfinite(own).all(axis=1)
    if is_lost.any():
        raise InputError(
            f"the position of atom {labels[is_lost.argmax()]} is NaN or infinite "
            f"({is_lost.sum()} such atoms): check the structure"
        )


def _near(own: FloatArray, ghosts: FloatArray, reach: float) -> IntArray:
    """Return the indices of ghosts that may be within reach of own atoms."""
    is_near = np.ones(len(ghosts), dtype=bool)
    for x, y in zip(own.T, ghosts.T, strict=True):  # columns one by one, which is faster in NumPy
        is_near &= (y >= x.min() - reach) & (y <= x.max() + reach)
    return np.flatnonzero(is_near)


def _refuse(batch: Batch, labels: IntArray) -> None:
    """Raise the error of atoms that are too close."""
    try:
        check_distances(batch, labels)
    except OverlappingAtomsError as error:
        if error.atoms is None:
            raise
        i, j = labels[list(error.atoms)]
        raise OverlappingAtomsError(
            f"atoms {i} and {j} are at the same point: move or remove one of them"
        ) from None
