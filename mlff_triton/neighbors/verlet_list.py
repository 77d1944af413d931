"""A neighbor list with a skin, rebuilt only when atoms have moved far enough."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import ArrayLike

from mlff_triton._common.text import short_repr
from mlff_triton._common.torch_settings import with_own_settings
from mlff_triton.errors import InputError
from mlff_triton.neighbors.box import Box, FloatArray, deformation
from mlff_triton.neighbors.graph import Graph
from mlff_triton.neighbors.neighbor_list import (
    MIN_DISTANCE,
    check_cutoff,
    check_positions,
    find_pairs,
    same_point,
)

HOST_SKIN = 0.5
"""Skin in Å of lists on the CPU, where steps take long."""
CPU_SKIN = 1.0
"""Skin in Å of lists in loops for CPUs. Half as many lists are built as with 0.5 Å, while selecting
edges takes a tenth longer, measured with steps of 0.5 fs from a lattice of water."""
SKINS = ((1500, 2.0), (10_000, 1.0), (math.inf, 0.5))
"""Pairs of the largest number of atoms and the skin in Å, for a GPU."""


def check_skin(skin: float | str) -> float | None:
    """Check a skin, and return it, or None for "auto"; it must be finite and not negative."""
    if isinstance(skin, str) and skin == "auto":
        return None
    if not isinstance(skin, (int, float, np.number)) or not 0 <= skin < math.inf:
        raise InputError(f"skin must be finite and not negative, or 'auto', not {short_repr(skin)}")
    return skin


def automatic_skin(n_atoms: int) -> float:
    """Return the skin in Å that minimizes the time per step on a GPU, with its share of a build.

    These were measured on an NVIDIA H200, with water at 300 K and 0.5 fs. Results do not depend on
    the skin.
    """
    return next(skin for size, skin in SKINS if n_atoms <= size)


class VerletList:
    """A neighbor list that is rebuilt only when necessary.

    Pairs within ``cutoff + skin`` are kept until the atoms or the cell have moved so far that a
    pair outside the list could have come within the cutoff. `update` filters them to the cutoff,
    so that it returns the same edges as a fresh `neighbor_list` at every step.

    Parameters
    ----------
    cutoff : float
        Cutoff radius in Å; `math.inf` for all pairs.
    skin : float
        Additional radius in Å. With 0, the list is rebuilt whenever an atom or the cell moves.

    Attributes
    ----------
    n_builds : int
        Number of times the list has been built.

    Raises
    ------
    InputError
        If the cutoff is not positive, or the skin is negative or not finite.

    Examples
    --------
    >>> pairs = VerletList(cutoff=5.0, skin=0.5)
    >>> for x in (1.0, 1.1):
    ...     graph = pairs.update([[0.0, 0.0, 0.0], [x, 0.0, 0.0]], cell=None, pbc=False)
    >>> graph.n_edges, pairs.n_builds
    (2, 1)
    """

    def __init__(self, cutoff: float, skin: float = 0.5) -> None:
        check_cutoff(cutoff)
        check_skin(skin)
        self.cutoff = cutoff
        self.skin = skin
        self.n_builds = 0
        self._built: tuple[Graph, FloatArray, Box] | None = None

    @with_own_settings
    def update(self, positions: ArrayLike, cell: ArrayLike | None, pbc: ArrayLike) -> Graph:
        """Return the neighbor list of the given positions.

        Parameters
        ----------
        positions : float [N, 3]
            Atom positions in Å.
        cell : float [3, 3] or None
            Lattice vectors (rows) in Å.
        pbc : bool or bool [3]
            Periodic directions.

        Returns
        -------
        Graph

        Raises
        ------
        InputError, OverlappingAtomsError
            Under the same conditions as `neighbor_list`.
        """
        points, box = check_positions(positions), Box.of(cell, pbc)
        graph = self._current(points, box)
        vectors = graph.vectors(torch.from_numpy(points), torch.from_numpy(box.cell)[None], None)
        squared = (vectors**2).sum(1)
        if len(squared) and squared.min() < MIN_DISTANCE**2:
            edge = int(squared.argmin())
            raise same_point(int(graph.receivers[edge]), int(graph.senders[edge]))
        return graph.select(squared < self.cutoff**2)

    def _current(self, points: FloatArray, box: Box) -> Graph:
        """Return the pairs within cutoff and skin, searched again if the list may be incomplete."""
        if self._built is not None:
            graph, points0, box0 = self._built
            if self._is_valid(points0, box0, points, box):
                return graph
        graph = find_pairs(points, box, self.cutoff + self.skin)
        self._built = graph, points.copy(), box
        self.n_builds += 1
        return graph

    def _is_valid(self, points0: FloatArray, box0: Box, points: FloatArray, box: Box) -> bool:
        """Return True if no pair outside the list can be within the cutoff: see `deformation`."""
        if len(points0) != len(points) or (box0.pbc != box.pbc).any():
            return False
        if math.isinf(self.cutoff):  # all pairs
            return True
        strain, sigma = deformation(box0, box)
        moved = np.linalg.norm(points - points0 @ strain, axis=1)
        reach = sigma * (self.cutoff + self.skin)
        return bool(reach - np.sort(moved)[-2:].sum() > self.cutoff)
