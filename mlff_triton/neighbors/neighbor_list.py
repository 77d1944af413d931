"""The pairs of atoms within a cutoff, in any cell.

Cells may be triclinic, partly periodic and smaller than the cutoff: every periodic image within
the cutoff is an edge of its own. `vesin` finds the pairs on the CPU, in float64.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
import vesin
from numpy.typing import ArrayLike, NDArray

from mlff_triton._common.torch_settings import with_own_settings
from mlff_triton.errors import InputError, OverlappingAtomsError
from mlff_triton.neighbors.box import (
    MAX_LENGTH,
    MAX_NEIGHBORS,
    Box,
    FloatArray,
    as_floats,
    check_box,
)
from mlff_triton.neighbors.graph import Graph

MIN_DISTANCE = 1e-3  # Å; below it, two atoms coincide and the edge has no direction
MAX_CELLS_APART = 100_000  # beyond it, the pair search overflows or takes forever
FAR = 10_000.0  # Å from the origin, where fractions of a skewed cell lose digits of positions
MAX_EXTENT = 10_000.0  # Å; the limit for directions that are not periodic
GRID_CELLS = 1e5  # most cells of the grid of `vesin`


@with_own_settings
def neighbor_list(
    positions: ArrayLike,
    cutoff: float,
    cell: ArrayLike | None = None,
    pbc: ArrayLike = False,
) -> Graph:
    """Find every pair of atoms, periodic images included, closer than a cutoff.

    Parameters
    ----------
    positions : float [N, 3]
        Atom positions in Å; they need not lie inside the cell.
    cutoff : float
        Cutoff radius in Å; `math.inf` for all pairs of atoms, without periodic directions.
    cell : float [3, 3], optional
        Lattice vectors (rows) in Å.
    pbc : bool or bool [3]
        Periodic directions.

    Returns
    -------
    Graph
        The neighbor list, on the CPU. The same input always gives the same order of edges.

    Raises
    ------
    InputError
        If positions or cell are not finite or have the wrong shape, if the cutoff is not positive,
        if it is infinite in a periodic cell, or if atoms would have tens of thousands of neighbors.
    OverlappingAtomsError
        If two atoms are closer than 0.001 Å.

    Examples
    --------
    >>> neighbor_list([[0.0, 0.0, 0.0], [0.0, 0.0, 1.0]], cutoff=5.0).n_edges
    2
    """
    points = check_positions(positions)
    return find_pairs(points, Box.of(cell, pbc), cutoff)


def check_positions(positions: ArrayLike) -> FloatArray:
    """Return positions as float64 [N, 3], or raise an `InputError` that says what is wrong."""
    points = np.ascontiguousarray(as_floats(positions, "positions"))
    if points.ndim != 2 or points.shape[1] != 3:
        raise InputError(f"positions must have shape [N, 3], not {list(points.shape)}")
    if len(points) == 0:
        raise InputError("there are no atoms: give at least one")
    with np.errstate(all="ignore"):
        is_finite = math.isfinite(points.sum())  # one fast pass, which rarely fails
    if is_finite:
        return points
    bad = np.flatnonzero(~np.isfinite(points).all(axis=1))
    if len(bad):
        raise InputError(
            f"the position of atom {bad[0]} is NaN or infinite ({len(bad)} such atoms): "
            "the simulation may have blown up"
        )
    return points


def check_cutoff(cutoff: float) -> None:
    """Raise `InputError` unless a cutoff is positive; an infinite one stands for all pairs."""
    if not cutoff > 0:
        raise InputError(f"the cutoff must be positive, not {cutoff}")


def find_pairs(points: FloatArray, box: Box, cutoff: float) -> Graph:
    """Find the neighbor list of checked positions in a checked cell, as `neighbor_list` does."""
    n_atoms = len(points)
    check_cutoff(cutoff)
    extent = _extent(points, box)
    if np.abs(points).max() > FAR:
        points = points - points[0]
    if math.isinf(cutoff):
        return _all_pairs(points, box)
    grid = _closed(box, extent, cutoff) if box.pbc.sum() == 1 else box
    # `vesin` pads the extent in open directions, and measures it along the coordinate axes.
    padded = 1.05 * np.maximum(extent, np.ptp(points, axis=0)) + 5.0
    radius = _search_radius(np.where(grid.pbc, grid.heights, padded), cutoff)
    if radius > cutoff:
        opened = _open_at_gap(points, box, cutoff)
        if opened is not None:
            return opened
    check_box(n_atoms, box, radius, extent)
    search = vesin.NeighborList(cutoff=radius, full_list=True)
    pairs, shifts, distances = search.compute(points, grid.cell, grid.pbc, quantities="PSd")
    if radius > cutoff:
        near = distances < cutoff
        pairs, shifts, distances = pairs[near], shifts[near], distances[near]
    check_apart(distances, pairs)
    ends = torch.from_numpy(pairs.astype(np.int64))
    return Graph.from_pairs(
        ends[:, 0], ends[:, 1], torch.from_numpy(shifts.astype(np.int64)), n_atoms
    )


def check_pairs(points: FloatArray, box: Box, cutoff: float) -> None:
    """Raise `InputError` if atoms lie too far apart, or if there are too many pairs."""
    check_box(len(points), box, cutoff, _extent(points, box))


def same_point(first: int, second: int) -> OverlappingAtomsError:
    """Return the error of two atoms that have come to the same point in a simulation."""
    return OverlappingAtomsError(
        f"atoms {first} and {second} have come to the same point: use a smaller time step, or "
        "check the starting structure"
    )


def check_apart(distances: FloatArray, pairs: NDArray[np.integer]) -> None:
    """Raise `OverlappingAtomsError` if two atoms are at the same point, given all pairs [E, 2]."""
    if len(distances) and distances.min() < MIN_DISTANCE:
        i, j = pairs[distances.argmin()]
        error = OverlappingAtomsError(
            f"atoms {i} and {j} are {distances.min():.1e} Å apart: move or remove one of them"
        )
        error.atoms = int(i), int(j)
        raise error


def _all_pairs(points: FloatArray, box: Box) -> Graph:
    """Return the list of all pairs of atoms; `find_pairs` does so for finite cutoffs."""
    if box.pbc.any():
        raise InputError("a periodic system has infinitely many pairs: take a finite cutoff")
    n_atoms = len(points)
    if n_atoms > MAX_NEIGHBORS:
        raise InputError(
            f"{n_atoms} atoms have too many pairs: take a finite cutoff; without one, at most "
            f"{MAX_NEIGHBORS} atoms are possible"
        )
    atoms = torch.arange(n_atoms)
    others = atoms.expand(n_atoms, n_atoms)[~torch.eye(n_atoms, dtype=torch.bool)]
    receivers = atoms.repeat_interleave(n_atoms - 1)
    graph = Graph(
        row_ptr=(n_atoms - 1) * torch.arange(n_atoms + 1),
        senders=others,
        shifts=torch.zeros(len(others), 3, dtype=torch.int64),
        reverse=others * (n_atoms - 1) + receivers - (receivers > others).long(),
    )
    distances = graph.vectors(torch.from_numpy(points), None, None).norm(dim=1)
    check_apart(distances.numpy(), torch.stack([receivers, others], dim=1).numpy())
    return graph


def _extent(points: FloatArray, box: Box) -> FloatArray:
    """Return the extent of atoms in Å along each direction; raise `InputError` if it is huge."""
    if np.abs(points).max() > MAX_LENGTH:  # where searches may overflow
        raise InputError(f"atoms lie more than {MAX_LENGTH:.0e} Å from the origin: move them there")
    extent = np.ptp(points @ np.linalg.inv(box.cell), axis=0)
    if (extent > np.where(box.pbc, MAX_CELLS_APART, MAX_EXTENT)).any():
        raise InputError("atoms are too far apart: the simulation may have blown up")
    return np.asarray(extent * box.heights)


def _closed(box: Box, extent: FloatArray, cutoff: float) -> Box:
    """Return a cell that is periodic in open directions too, with no pair across them.

    With a single periodic direction, the time that `vesin` 0.6 takes grows with the square of the
    number of cells of its grid: seconds for a few atoms that are 300 Å apart.
    """
    lengths = np.where(box.pbc, 1.0, extent + 1.01 * cutoff)
    return Box(box.cell * lengths[:, None], np.ones(3, dtype=bool))


def _search_radius(span: FloatArray, cutoff: float) -> float:
    """Return the cutoff, or the smallest larger radius at which `vesin` 0.6 does not crash.

    Its grid has ``max(1, span // radius)`` cells along each direction. If there are more than
    `GRID_CELLS`, it scales their numbers down. In flat or long grids, a number becomes zero, and
    the process dies of a division by zero. Cubic grids can be scaled down.

    Parameters
    ----------
    span : float [3]
        Extent of the grid in Å along each direction.
    cutoff : float
        Cutoff radius in Å.
    """
    cells = np.maximum(span / cutoff, 1.0)
    if cells.min() >= 6 * np.cbrt(cells.prod() / GRID_CELLS):
        return cutoff
    longest = np.sort(span)[::-1]
    bounds = [(longest[:k].prod() / GRID_CELLS) ** (1 / k) for k in (1, 2, 3)]
    return float(max(cutoff, *bounds))


def _open_at_gap(points: FloatArray, box: Box, cutoff: float) -> Graph | None:
    """Find pairs in a cell with an empty layer as wide as the cutoff, without its periodicity.

    Returns
    -------
    Graph or None
        The neighbor list in the given cell, or None if no periodic direction has such a layer.
    """
    fractional = points @ np.linalg.inv(box.cell)
    for axis in np.flatnonzero(box.pbc):
        order = np.sort(fractional[:, axis] % 1.0)
        gaps = np.diff(order, append=order[0] + 1.0)
        widest = int(gaps.argmax())
        if gaps[widest] * box.heights[axis] < 1.001 * cutoff:
            continue
        start = order[widest] + gaps[widest] / 2
        cells = np.floor(fractional[:, axis] - start)
        pbc = box.pbc & (np.arange(3) != axis)
        graph = find_pairs(points - cells[:, None] * box.cell[axis], Box.of(box.cell, pbc), cutoff)
        shifts, of_atom = graph.shifts.clone(), torch.from_numpy(cells.astype(np.int64))
        shifts[:, axis] = of_atom[graph.receivers] - of_atom[graph.senders]
        return replace(graph, shifts=shifts)
    return None
