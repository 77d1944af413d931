"""Search for all pairs of atoms within a radius, in any cells.

Atoms are sorted into bins along the lattice vectors. Those of nearby bins are compared, of which
some may be periodic images of one another if a cell is small. The results are those of
`mlff_triton.neighbors.neighbor_list.find_pairs`, for all systems of a batch at once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlff_triton.kernels.common.cpu.compilation import exact_inlined, exact_loop, run

BINS = 2
"""Bins within the radius, along each direction."""
FEWEST_BINS = 64
"""Number of bins that is allowed for few atoms, too."""
MARGIN = 1 + 1e-9
"""Factor of the radius by which bins are found, because their edges are rounded."""
LEAST = 1e-6
"""Extent in Å of flat systems."""

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class NeighborRows(NamedTuple):
    """Neighbors within a radius, as in `mlff_triton.neighbors.graph.Graph`.

    Attributes
    ----------
    row_ptr : int64 [N + 1]
        The neighbors of atom ``i`` are ``row_ptr[i]:row_ptr[i + 1]``.
    senders : int32 [E]
        Atom ``j`` of each pair.
    shifts : int32 [E, 3]
        Lattice translation of ``j``.
    reverse : int32 [E]
        Index of the opposite pair.
    """

    row_ptr: IntArray
    senders: NDArray[np.int32]
    shifts: NDArray[np.int32]
    reverse: NDArray[np.int32]


class Bins(NamedTuple):
    """Atoms in bins along the lattice vectors of their systems.

    Attributes
    ----------
    points : float64 [N, 3]
        Positions in Å, in the cell along periodic directions, from bin to bin.
    members : int32 [N]
        Atoms, from bin to bin.
    ptr : int64 [bins + 1]
        First member of each bin.
    rank : int64 [N]
        Index of each atom among the members.
    own : int64 [N, 3]
        Bin of each atom along each direction.
    offsets : int64 [N, 3]
        Cell in which each atom lies.
    first, counts, reach : int64 [B], [B, 3], [B, 3]
        First bin of each system, their numbers along each direction, and the number of bins to
        either side within the radius.
    """

    points: FloatArray
    members: NDArray[np.int32]
    ptr: IntArray
    rank: IntArray
    own: IntArray
    offsets: IntArray
    first: IntArray
    counts: IntArray
    reach: IntArray


def search(
    positions: FloatArray,
    system_ptr: NDArray[np.int32],
    cells: FloatArray,
    periodic: NDArray[np.bool_],
    radius: float,
) -> NeighborRows:
    """Find all pairs within a radius, in both directions.

    Parameters
    ----------
    positions : float64 [N, 3]
        Å. Neither they nor the cells may be so large that there are too many pairs.
    system_ptr : int32 [B + 1]
        First atom of each system.
    cells : float64 [B, 3, 3]
        Lattice vectors (rows) in Å, a basis even if some directions are not periodic.
    periodic : bool [B, 3]
        Periodic directions.
    radius : float
        Å.
    """
    n_atoms = len(positions)
    system = np.repeat(np.arange(len(cells)), np.diff(system_ptr))
    origins = positions[system_ptr[:-1]]  # far from zero, positions have fewer digits
    bins = _bins(positions - origins[system], system, system_ptr, cells, periodic, radius)
    counts = np.zeros(n_atoms, dtype=np.int64)  # so that `compile_ahead` allocates nothing
    given = system, cells, periodic, *bins, radius * radius
    nothing = np.empty(0, dtype=np.int64)
    integers = np.empty(0, dtype=np.int32)
    run(_search, n_atoms, *given, nothing, nothing, counts, integers, integers.reshape(0, 3))
    row_ptr = np.zeros(n_atoms + 1, dtype=np.int64)
    np.cumsum(counts, out=row_ptr[1:])
    n_pairs = int(row_ptr[-1])
    senders, reverse = (np.empty(n_pairs, dtype=np.int32) for _ in range(2))
    shifts = np.empty((n_pairs, 3), dtype=np.int32)
    keys = np.empty(n_pairs, dtype=np.int64)
    run(_search, n_atoms, *given, row_ptr, keys, counts, senders, shifts)
    cursor = row_ptr[:-1].copy()
    run(_find_reverse, n_atoms, row_ptr, senders, cursor, reverse, in_order=True)
    return NeighborRows(row_ptr, senders, shifts, reverse)


def _bins(
    positions: FloatArray,
    system: IntArray,
    system_ptr: NDArray[np.int32],
    cells: FloatArray,
    periodic: NDArray[np.bool_],
    radius: float,
) -> Bins:
    """Sort atoms into bins."""
    inverse = np.linalg.inv(cells)
    fractions = np.einsum("na,nab->nb", positions, inverse[system])
    offsets = np.where(periodic[system], np.floor(fractions), 0.0)
    points = positions - np.einsum("na,nab->nb", offsets, cells[system])
    fractions -= offsets
    starts = system_ptr[:-1]
    low = np.where(periodic, 0.0, np.minimum.reduceat(fractions, starts))
    high = np.where(periodic, 1.0, np.maximum.reduceat(fractions, starts))
    extent = np.maximum(high - low, LEAST)
    spans = extent / np.linalg.norm(inverse, axis=1)
    counts = _bin_counts(BINS * spans / radius, np.diff(system_ptr))
    reach = np.ceil(MARGIN * radius * counts / spans).astype(np.int64)
    reach = np.where(periodic, reach, np.minimum(reach, counts - 1))
    own = ((fractions - low[system]) * (counts / extent)[system]).astype(np.int64)
    own = np.clip(own, 0, counts[system] - 1)
    totals = counts.prod(axis=1)
    first = np.cumsum(totals) - totals
    a, b, c = own.T
    home = first[system] + (a * counts[system, 1] + b) * counts[system, 2] + c
    members = np.argsort(home, kind="stable")
    rank = np.empty_like(members)
    rank[members] = np.arange(len(members))
    ptr = np.zeros(int(totals.sum()) + 1, dtype=np.int64)
    np.cumsum(np.bincount(home, minlength=len(ptr) - 1), out=ptr[1:])
    return Bins(
        points=points[members],
        members=members.astype(np.int32),
        ptr=ptr,
        rank=rank,
        own=own,
        offsets=offsets.astype(np.int64),
        first=first,
        counts=counts,
        reach=reach,
    )


def _bin_counts(wanted: FloatArray, n_atoms: NDArray[np.int32]) -> IntArray:
    """Return numbers of bins, [B, 3], as wanted unless there would be many more than atoms."""
    most = np.maximum(4 * n_atoms, FEWEST_BINS)
    counts = np.maximum(wanted, 1.0)
    while (is_many := np.floor(counts).prod(axis=1) > most).any():
        rows = np.flatnonzero(is_many)
        axes = counts[rows].argmax(axis=1)
        counts[rows, axes] = np.maximum(counts[rows, axes] / 2, 1.0)
    return counts.astype(np.int64)


@exact_inlined
def _sort(keys, start, stop):
    """Sort part of an array by Shell's method."""
    gap = 1
    while 3 * gap < stop - start:
        gap = 3 * gap + 1
    while gap > 0:
        for a in range(start + gap, stop):
            key, b = keys[a], a
            while b >= start + gap and keys[b - gap] > key:
                keys[b] = keys[b - gap]
                b -= gap
            keys[b] = key
        gap //= 3


@exact_inlined
def _wrap(k, count):
    """Return the bin that stands for a bin of a periodic image, and in which image that is."""
    image = k // count
    return k - image * count, image


@exact_inlined
def _compare(
    points, members, begin, end, position, translation, squared, own, keys, start, size, code
):  # fmt: skip
    """Count the atoms of a bin that are near; write their keys from ``start`` on if it is >= 0."""
    found = 0
    for m in range(begin, end):
        dx = (position[0] - points[m, 0]) - translation[0]
        dy = (position[1] - points[m, 1]) - translation[1]
        dz = (position[2] - points[m, 2]) - translation[2]
        if dx * dx + dy * dy + dz * dz < squared and members[m] != own:
            if start >= 0:
                keys[start + found] = members[m] * size + code
            found += 1
    return found


@exact_inlined
def _unpack(keys, begin, end, i, offsets, sizes, senders, shifts):
    """Write the senders and lattice translations of the pairs of an atom, in order."""
    _sort(keys, begin, end)
    size = sizes[0] * sizes[1] * sizes[2]
    for e in range(begin, end):
        j, code = keys[e] // size, keys[e] % size
        senders[e] = j
        translation = code // (sizes[1] * sizes[2]), code // sizes[2] % sizes[1], code % sizes[2]
        for axis in range(3):
            moved = offsets[i, axis] - offsets[j, axis]
            shifts[e, axis] = translation[axis] - sizes[axis] // 2 + moved


@exact_loop
def _search(
    system, cells, periodic, points, members, ptr, rank, own, offsets, first_bin, bins, reach,
    squared, row_ptr, keys, counts, senders, shifts, first, last,
):  # fmt: skip
    """Count the neighbors of atoms, or write them if there are ``row_ptr``.

    A key sorts like a sender and its lattice translation.
    """
    writes = len(row_ptr) > 0
    for i in range(first, last):
        s, m = system[i], rank[i]
        sizes = 2 * reach[s, 0] + 1, 2 * reach[s, 1] + 1, 2 * reach[s, 2] + 1
        size = sizes[0] * sizes[1] * sizes[2]
        position = points[m, 0], points[m, 1], points[m, 2]
        begin = row_ptr[i] if writes else -1
        found = 0
        for code in range(size):
            k0, t0 = _wrap(own[i, 0] + code // (sizes[1] * sizes[2]) - reach[s, 0], bins[s, 0])
            k1, t1 = _wrap(own[i, 1] + code // sizes[2] % sizes[1] - reach[s, 1], bins[s, 1])
            k2, t2 = _wrap(own[i, 2] + code % sizes[2] - reach[s, 2], bins[s, 2])
            is_in = (periodic[s, 0] or t0 == 0) and (periodic[s, 1] or t1 == 0)
            if not (is_in and (periodic[s, 2] or t2 == 0)):
                continue
            u, v, w = float(t0), float(t1), float(t2)
            translation = (
                u * cells[s, 0, 0] + v * cells[s, 1, 0] + w * cells[s, 2, 0],
                u * cells[s, 0, 1] + v * cells[s, 1, 1] + w * cells[s, 2, 1],
                u * cells[s, 0, 2] + v * cells[s, 1, 2] + w * cells[s, 2, 2],
            )
            home = first_bin[s] + (k0 * bins[s, 1] + k1) * bins[s, 2] + k2
            label = ((t0 + reach[s, 0]) * sizes[1] + t1 + reach[s, 1]) * sizes[2]
            found += _compare(
                points, members, ptr[home], ptr[home + 1], position, translation, squared,
                i if t0 == 0 and t1 == 0 and t2 == 0 else -1,
                keys, begin + found if writes else -1, size, label + t2 + reach[s, 2],
            )  # fmt: skip
        counts[i] = found
        if writes:
            _unpack(keys, begin, begin + found, i, offsets, sizes, senders, shifts)


@exact_loop
def _find_reverse(row_ptr, senders, cursor, reverse, first, last):
    """Find the opposite of each pair; ``cursor`` begins at the start of each row.

    Rows are sorted by senders. So their opposite pairs are met in the order of each row, except
    for several images of one sender, whose translations are sorted the other way round.
    """
    for i in range(first, last):
        e = row_ptr[i]
        while e < row_ptr[i + 1]:
            j = senders[e]
            count = 1
            while e + count < row_ptr[i + 1] and senders[e + count] == j:
                count += 1
            for k in range(count):
                reverse[e + k] = cursor[j] + count - 1 - k
            cursor[j] += count
            e += count
