"""Atoms that are closer than in any structure, as in simulations that fall apart."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from mlff_triton.neighbors.box import Box, FloatArray
from mlff_triton.neighbors.neighbor_list import check_positions, find_pairs

MARGIN = 1.0  # Å by which a search looks beyond the smallest distances


class Contact(NamedTuple):
    """Two atoms of a system that are too close, and their distance in Å."""

    first: int
    second: int
    distance: float

    def __str__(self) -> str:
        return f"atoms {self.first} and {self.second} are only {self.distance:.2g} Å apart"


class ContactSearch:
    """Search for atoms of one system that are too close, in consecutive steps.

    A search also finds how far all pairs are from being too close. Until atoms have moved that far
    or the cell has changed, steps need no search.

    Parameters
    ----------
    limits : float64 [N]
        Length of each atom in Å: two atoms are too close below the sum of their lengths.
    """

    def __init__(self, limits: FloatArray) -> None:
        self._limits = limits
        self._reach = 2 * float(limits.max()) + MARGIN
        self._slack = 0.0  # Å, of the closest pair at the last search
        self._points, self._cell = np.zeros((0, 3)), np.zeros((3, 3))

    def find(
        self, positions: FloatArray, cell: FloatArray, pbc: NDArray[np.bool_]
    ) -> Contact | None:
        """Return the pair of atoms that is too close by the largest amount, if any.

        Parameters
        ----------
        positions : float64 [N, 3]
            Å.
        cell : float64 [3, 3]
            Lattice vectors as rows, Å.
        pbc : bool [3]
            Periodic directions, always the same.

        Raises
        ------
        InputError, OverlappingAtomsError
            As for `neighbor_list`.
        """
        if self._is_apart(positions, cell):
            return None
        points, box = check_positions(positions), Box.of(cell, pbc)
        graph = find_pairs(points, box, self._reach)
        i, j = graph.receivers.numpy(), graph.senders.numpy()
        matrix = torch.from_numpy(box.cell)[None]
        vectors = graph.vectors(torch.from_numpy(points), matrix, None).numpy()
        distances = np.linalg.norm(vectors, axis=1)
        slack = distances - (self._limits[i] + self._limits[j])
        closest = int(slack.argmin()) if len(slack) else -1
        self._slack = min(float(slack[closest]), MARGIN) if len(slack) else MARGIN
        self._points, self._cell = points.copy(), cell.copy()
        if self._slack > 0:
            return None
        return Contact(int(i[closest]), int(j[closest]), float(distances[closest]))

    def _is_apart(self, positions: FloatArray, cell: FloatArray) -> bool:
        """Return True if no pair can have come too close since the last search."""
        if self._slack <= 0 or not np.array_equal(cell, self._cell):
            return False
        moves = positions - self._points
        return bool(4 * np.einsum("na,na->n", moves, moves).max() < self._slack**2)
