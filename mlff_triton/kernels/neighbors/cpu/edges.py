"""Edges within the cutoff and their geometry, from a neighbor list and the current positions.

    r_e = pos_i - pos_j - S_e @ cell      in float64, whatever the dtype of the network

The list holds all pairs within cutoff plus skin at the time it was built. Each step selects those
within the cutoff, in the order of the list: see `mlff_triton.kernels.neighbors.edges`, for a GPU.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mlff_triton.kernels.common.cpu.algebra import algebra, larger, smaller
from mlff_triton.kernels.common.cpu.compilation import exact_loop, run
from mlff_triton.kernels.neighbors.cpu.search import FloatArray, NeighborRows
from mlff_triton.kernels.types.edges import Edges, Knots


class Report(NamedTuple):
    """Observations of a selection of edges, per atom.

    Attributes
    ----------
    closest : float64 [N]
        Squared distance to the nearest other atom in the list, Å^2; infinite without one.
    slack : float64 [N]
        Distance in Å that the atom may still move while the list remains complete.
    contact : float64 [N]
        Smallest distance to another atom, minus the lengths of both, in Å; infinite if all others
        are far away.
    """

    closest: FloatArray
    slack: FloatArray
    contact: FloatArray

    @classmethod
    def empty(cls, n_atoms: int) -> Report:
        """Return a report for isolated atoms that have not moved."""
        return cls(*(np.full(n_atoms, np.inf) for _ in cls._fields))


def empty_edges(rows: NeighborRows, dtype: torch.dtype) -> Edges:
    """Return memory for edges of all pairs of a list. It holds none yet."""
    n_slots = len(rows.senders)

    def integers(size: int) -> Tensor:
        return torch.empty(size, dtype=torch.int32)

    begin = torch.from_numpy(rows.row_ptr).int()
    return Edges(
        slot_begin=begin[:-1],
        slot_end=begin[:-1].clone(),
        senders=integers(n_slots),
        origin=integers(n_slots),
        reverse=torch.from_numpy(rows.reverse),
        interval=integers(n_slots),
        fraction=torch.empty(n_slots, dtype=dtype),
        width=torch.empty(n_slots, dtype=dtype),
        direction=torch.empty(3, n_slots, dtype=dtype),
        distance=torch.empty(n_slots, dtype=dtype),
    )


def select_edges(
    positions: FloatArray,
    cells: FloatArray,
    system: np.ndarray,
    rows: NeighborRows,
    anchors: FloatArray,
    limits: FloatArray,
    knots: Knots,
    cutoff: float,
    lengths: FloatArray,
    out: Edges,
    report: Report,
) -> None:
    """Select the edges within the cutoff, and compute their geometry.

    Parameters
    ----------
    positions : float64 [N, 3]
        Current positions, Å.
    cells : float64 [B, 3, 3]
        Current lattice vectors (rows), Å.
    system : int64 [N]
        System of each atom.
    rows : NeighborRows
        Pairs within cutoff and skin, when the list was built.
    anchors : float64 [N, 3]
        Positions at that time, deformed with the cell, Å.
    limits : float64 [B]
        Largest distance in Å of an atom from its anchor for which the list is complete.
    knots : Knots
        Knots of the radial tables.
    cutoff : float
        Å.
    lengths : float64 [N]
        Length of each atom in Å: two atoms are too close below the sum of their lengths.
    out : Edges
        From `empty_edges`. Slots without an edge keep their contents.
    report : Report
        Overwritten.
    """
    lists = rows.row_ptr, rows.senders, rows.shifts
    kept = out.slot_end, out.senders, out.origin
    geometry = out.interval, out.fraction, out.width, out.direction, out.distance
    given = positions, cells, system, anchors, limits, *lists, *knots, cutoff
    lengths_and_longest = lengths, 2 * float(lengths.max())
    run(_select, len(positions), *given, *lengths_and_longest, *kept, *geometry, *report)


@algebra
def _vector(positions, i, j, cells, s, shifts, e):
    """Return the vector of a pair; the opposite pair has exactly the opposite vector."""
    a, b, c = shifts[e, 0], shifts[e, 1], shifts[e, 2]
    tx = a * cells[s, 0, 0] + b * cells[s, 1, 0] + c * cells[s, 2, 0]
    ty = a * cells[s, 0, 1] + b * cells[s, 1, 1] + c * cells[s, 2, 1]
    tz = a * cells[s, 0, 2] + b * cells[s, 1, 2] + c * cells[s, 2, 2]
    dx = (positions[i, 0] - positions[j, 0]) - tx
    dy = (positions[i, 1] - positions[j, 1]) - ty
    dz = (positions[i, 2] - positions[j, 2]) - tz
    return dx, dy, dz


@algebra
def _squared_move(positions, anchors, i):
    """Return the squared distance of an atom from its anchor."""
    dx = positions[i, 0] - anchors[i, 0]
    dy = positions[i, 1] - anchors[i, 1]
    dz = positions[i, 2] - anchors[i, 2]
    return dx * dx + dy * dy + dz * dz


@algebra
def _squared(vector):
    dx, dy, dz = vector
    return dx * dx + dy * dy + dz * dz


@algebra
def _write_direction(direction, e, vector, d):
    dx, dy, dz = vector
    direction[0, e], direction[1, e], direction[2, e] = dx / d, dy / d, dz / d


@exact_loop
def _select(
    positions, cells, system, anchors, limits, row_ptr, row_senders, row_shifts, knots, intervals,
    cutoff, lengths, longest, slot_end, senders, origin, interval, fraction, width, direction,
    distance, closest, slack, contact, first, last,
):  # fmt: skip
    squared_cutoff, squared_longest = cutoff * cutoff, longest * longest
    per_cell = len(intervals) / (knots[len(knots) - 1] - knots[0])
    for i in range(first, last):
        s = system[i]
        slack[i] = limits[s] - math.sqrt(_squared_move(positions, anchors, i))
        nearest = least = math.inf
        out = row_ptr[i]
        for e in range(row_ptr[i], row_ptr[i + 1]):
            j = row_senders[e]
            vector = _vector(positions, i, j, cells, s, row_shifts, e)
            squared = _squared(vector)
            nearest = smaller(nearest, squared)
            if squared < squared_longest:
                room = math.sqrt(squared) - (lengths[i] + lengths[j])
                least = smaller(least, room)
            if squared < squared_cutoff:
                d = math.sqrt(squared)
                # as `Knots.locate` does
                cell = int((d - knots[0]) * per_cell)
                k = intervals[larger(smaller(cell, len(intervals) - 1), 0)]
                if d >= knots[k + 1]:
                    k += 1
                k = smaller(k, len(knots) - 2)
                h = knots[k + 1] - knots[k]
                t = larger(smaller((d - knots[k]) / h, 1.0), 0.0)
                senders[out], origin[out], interval[out] = j, e, k
                fraction[out], width[out], distance[out] = t, h, d
                _write_direction(direction, out, vector, d)
                out += 1
        slot_end[i] = out
        closest[i], contact[i] = nearest, least
