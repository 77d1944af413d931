"""Positions, cell and periodicity -> neighbor graph, for any cell, with a Verlet skin.

Cells may be triclinic, partly periodic and smaller than the cutoff: every image within reach is an
edge of its own. The pairs come from `vesin` on the CPU, in float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import vesin
from numpy.typing import ArrayLike, NDArray

from mlff_triton.errors import InputError, OverlappingAtomsError
from mlff_triton.neighbors.graph import Graph

MIN_DISTANCE = 1e-3  # Å; closer than this is one point, where no direction is defined
MAX_EDGES = 500_000_000
MAX_CELLS_APART = 100_000  # beyond it the pair search overflows, or takes forever
MAX_EXTENT = 10_000.0  # Å, likewise, where there are no cells

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True)
class Box:
    """A checked cell.

    Attributes
    ----------
    cell : float64 [3, 3]
        Lattice vectors (rows) in Å; directions without periodicity are completed to a basis.
    pbc : bool [3]
        Periodic directions.
    """

    cell: FloatArray
    pbc: BoolArray

    @classmethod
    def of(cls, cell: ArrayLike | None, pbc: ArrayLike) -> Box:
        """Check and complete a cell.

        Raises
        ------
        InputError
            If the shape is wrong, a number is not finite, or a periodic direction has no vector.
        """
        periodic = np.asarray(pbc, dtype=bool)
        if periodic.shape not in ((), (3,)):
            raise InputError(f"pbc must be one bool or three, not {periodic.tolist()}")
        periodic = np.broadcast_to(periodic, 3).copy()
        rows = np.zeros((3, 3)) if cell is None else _as_floats(cell, "the cell").copy()
        if rows.shape != (3, 3):
            raise InputError(f"the cell must have shape [3, 3], not {list(rows.shape)}")
        if not np.isfinite(rows).all():
            raise InputError("the cell holds NaN or infinity")
        rows[~periodic] = 0.0
        if (np.linalg.norm(rows[periodic], axis=1) == 0).any() or (
            periodic.any() and np.linalg.matrix_rank(rows[periodic]) < periodic.sum()
        ):
            raise InputError(
                "a periodic direction has no independent cell vector: set the cell, or pbc=False"
            )
        # The null space of the periodic vectors is an orthonormal basis of the open directions.
        rows[~periodic] = np.linalg.svd(rows)[2][periodic.sum() :]
        return cls(rows, periodic)

    @property
    def heights(self) -> FloatArray:
        """Distance between opposite faces along each direction, float64 [3], Å."""
        return np.asarray(1.0 / np.linalg.norm(np.linalg.inv(self.cell), axis=0))


def neighbor_list(
    positions: ArrayLike,
    cutoff: float,
    cell: ArrayLike | None = None,
    pbc: ArrayLike = False,
) -> Graph:
    """Find every pair of atoms (and images) closer than a cutoff.

    Parameters
    ----------
    positions : float [N, 3]
        Atom positions in Å; they need not lie inside the cell.
    cutoff : float
        Cutoff radius in Å.
    cell : float [3, 3], optional
        Lattice vectors (rows) in Å.
    pbc : bool or bool [3]
        Periodic directions.

    Returns
    -------
    Graph
        On the CPU. The same input always gives the same order of edges.

    Raises
    ------
    InputError
        If positions or cell are not finite or of wrong shape, or the cell is absurdly small.
    OverlappingAtomsError
        If two atoms are closer than 0.001 Å.

    Examples
    --------
    >>> neighbor_list([[0.0, 0.0, 0.0], [0.0, 0.0, 1.0]], cutoff=5.0).n_edges
    2
    """
    points = check_positions(positions)
    return _find_pairs(points, Box.of(cell, pbc), cutoff)


def check_positions(positions: ArrayLike) -> FloatArray:
    """Positions as float64 [N, 3], or an `InputError` that says what is wrong with them."""
    points = np.ascontiguousarray(_as_floats(positions, "positions"))
    if points.ndim != 2 or points.shape[1] != 3:
        raise InputError(f"positions must have shape [N, 3], not {list(points.shape)}")
    if len(points) == 0:
        raise InputError("there are no atoms: give at least one")
    with np.errstate(all="ignore"):
        sound = math.isfinite(points.sum())  # one fast pass; which atom it is is asked only then
    if sound:
        return points
    bad = np.flatnonzero(~np.isfinite(points).all(axis=1))
    if len(bad):
        raise InputError(
            f"the position of atom {bad[0]} is NaN or infinite ({len(bad)} such atoms): "
            "the simulation may have blown up"
        )
    return points


def _as_floats(values: ArrayLike, name: str) -> FloatArray:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be an array of real numbers: {error}") from error


def _check_cutoff(cutoff: float) -> None:
    if not 0 < cutoff < np.inf:
        raise InputError(f"the cutoff must be positive and finite, not {cutoff}")


def check_skin(skin: float) -> None:
    """Raise `InputError` for what cannot be an extra radius."""
    if not 0 <= skin < np.inf:
        raise InputError(f"skin must be finite and not negative, not {skin}")


def _check_extent(points: FloatArray, box: Box) -> None:
    """Refuse atoms so far apart that the search would overflow, or never end."""
    extent = np.ptp(points @ np.linalg.inv(box.cell), axis=0)
    far = (extent[box.pbc] > MAX_CELLS_APART).any() or (extent[~box.pbc] > MAX_EXTENT).any()
    if far:
        raise InputError("atoms lie too far apart: the simulation may have blown up")


def _find_pairs(points: FloatArray, box: Box, cutoff: float) -> Graph:
    n_atoms = len(points)
    _check_cutoff(cutoff)
    _check_extent(points, box)
    check_box(n_atoms, box, cutoff)
    search = vesin.NeighborList(cutoff=cutoff, full_list=True)
    pairs, shifts, distances = search.compute(points, box.cell, box.pbc, quantities="PSd")
    if len(distances) and distances.min() < MIN_DISTANCE:
        i, j = pairs[distances.argmin()]
        raise OverlappingAtomsError(
            f"atoms {i} and {j} are {distances.min():.1e} Å apart: move or remove one of them"
        )
    ends = torch.from_numpy(pairs.astype(np.int64))
    return Graph.from_pairs(
        ends[:, 0], ends[:, 1], torch.from_numpy(shifts.astype(np.int64)), n_atoms
    )


def check_box(n_atoms: int, box: Box, cutoff: float) -> None:
    """Refuse what could only run out of memory: a cell far smaller than its own cutoff sphere."""
    if not box.pbc.any():
        return
    images = np.prod(2 * np.ceil(cutoff / box.heights[box.pbc]) + 1)
    if n_atoms * images > MAX_EDGES:
        raise InputError(
            f"the cell is only {box.heights[box.pbc].min():.2g} Å high, {images:.0e} images lie "
            f"within the cutoff of {cutoff:g} Å: check its units"
        )


def deformation(old: Box, new: Box) -> tuple[FloatArray, float]:
    """The matrix F that maps one cell to another of the same periodicity, and its least stretch.

    With ``pos = pos0 @ F + u`` a pair that was farther apart than a radius is now farther than
    ``sigma radius - |u_i| - |u_j|``, where sigma is the smallest singular value of F.
    """
    strain = np.eye(3)
    if old is new or (old.cell == new.cell).all():
        return strain, 1.0
    before, after = old.cell[old.pbc], new.cell[new.pbc]
    strain += np.linalg.pinv(before) @ (after - before)
    return strain, float(np.linalg.svd(strain, compute_uv=False).min())


class VerletList:
    """A neighbor list that is rebuilt only when it must be.

    Pairs are searched up to ``cutoff + skin`` and kept until an atom or the cell has moved so far
    that a pair outside the list could have come within the cutoff. What `update` returns is
    filtered to the cutoff, so it equals a fresh list, edge for edge, at every step.

    Parameters
    ----------
    cutoff : float
        Cutoff radius in Å.
    skin : float
        Extra radius in Å; 0 rebuilds whenever anything moved.
    """

    def __init__(self, cutoff: float, skin: float = 0.5) -> None:
        _check_cutoff(cutoff)
        check_skin(skin)
        self.cutoff = cutoff
        self.skin = skin
        self.n_builds = 0
        self._reference: tuple[FloatArray, Box] | None = None
        self._graph: Graph | None = None

    def update(self, positions: ArrayLike, cell: ArrayLike | None, pbc: ArrayLike) -> Graph:
        """The neighbor list of these positions; arguments and errors as for `neighbor_list`."""
        points, box = check_positions(positions), Box.of(cell, pbc)
        if self._graph is None or self._is_stale(points, box):
            self._graph = _find_pairs(points, box, self.cutoff + self.skin)
            self._reference = points.copy(), box
            self.n_builds += 1
        vectors = self._graph.vectors(
            torch.from_numpy(points), torch.from_numpy(box.cell)[None], None
        )
        squared = (vectors**2).sum(1)
        if len(squared) and squared.min() < MIN_DISTANCE**2:
            edge = int(squared.argmin())
            raise OverlappingAtomsError(
                f"atoms {int(self._graph.receivers[edge])} and {int(self._graph.senders[edge])} "
                "have come to one point: the time step or the starting structure is bad"
            )
        return self._graph.select(squared < self.cutoff**2)

    def _is_stale(self, points: FloatArray, box: Box) -> bool:
        """Whether a pair outside the list may now be within the cutoff: see `deformation`."""
        assert self._reference is not None
        points0, box0 = self._reference
        if len(points0) != len(points) or (box0.pbc != box.pbc).any():
            return True
        strain, sigma = deformation(box0, box)
        moved = np.linalg.norm(points - points0 @ strain, axis=1)
        reach = sigma * (self.cutoff + self.skin)
        return bool(reach - np.sort(moved)[-2:].sum() <= self.cutoff)
