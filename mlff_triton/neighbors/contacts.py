"""Atoms that have come closer than in any structure, as in simulations that fall apart."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from mlff_triton.neighbors.box import FloatArray
from mlff_triton.neighbors.verlet_list import VerletList


class Contact(NamedTuple):
    """Two atoms of a system that are too close, and their distance in Å."""

    first: int
    second: int
    distance: float

    def __str__(self) -> str:
        return f"atoms {self.first} and {self.second} are only {self.distance:.2g} Å apart"


class ContactSearch:
    """Search for atoms of one system that are too close, in steps that follow one another.

    Parameters
    ----------
    limits : float64 [N]
        Length of each atom in Å: two atoms are too close below the sum of theirs.
    """

    def __init__(self, limits: FloatArray) -> None:
        self._limits = torch.from_numpy(limits)
        self._pairs = VerletList(2 * float(self._limits.max()), skin=0.5)

    def find(
        self, positions: FloatArray, cell: FloatArray, pbc: NDArray[np.bool_]
    ) -> Contact | None:
        """Return the closest pair of atoms, by their limit, if any is too close.

        Parameters
        ----------
        positions : float64 [N, 3]
            Å.
        cell : float64 [3, 3]
            Lattice vectors as rows, Å.
        pbc : bool [3]
            Periodic directions.

        Raises
        ------
        InputError, OverlappingAtomsError
            As `VerletList.update` does.
        """
        graph = self._pairs.update(positions, cell, pbc)
        if graph.n_edges == 0:
            return None
        i, j = graph.receivers, graph.senders
        vectors = graph.vectors(torch.from_numpy(positions), torch.from_numpy(cell)[None], None)
        ratios = vectors.norm(dim=1) / (self._limits[i] + self._limits[j])
        k = int(ratios.argmin())
        if ratios[k] >= 1:
            return None
        return Contact(int(i[k]), int(j[k]), float(vectors[k].norm()))
