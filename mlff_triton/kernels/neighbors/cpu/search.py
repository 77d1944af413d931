"""Search for all pairs of atoms within a radius, in any cells.

Atoms are sorted into bins along the lattice vectors; bins are as wide as the radius, unless the
system is smaller. Atoms of nearby bins are compared. In a small cell, some of these are periodic
images of the same bin. The results are those of `mlff_triton.neighbors.neighbor_list.find_pairs`,
for all systems of a batch at once, in a third of its time for water and a tenth for molecules.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlff_triton.kernels.common.cpu.algebra import algebra
from mlff_triton.kernels.common.cpu.compilation import exact_loop, run

FEWEST_BINS = 64
"""Number of bins that is allowed even for few atoms."""
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
    points : float64 [3, N]
        Positions in Å, in the cell along periodic directions, from bin to bin.
    members : int64 [N]
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
    bits : int64 [B, 3]
        Bits of the number of a bin within reach, along each direction.
    """

    points: FloatArray
    members: IntArray
    ptr: IntArray
    rank: IntArray
    own: IntArray
    offsets: IntArray
    first: IntArray
    counts: IntArray
    reach: IntArray
    bits: IntArray


def search(
    positions: FloatArray,
    system_ptr: NDArray[np.int32],
    cells: FloatArray,
    periodic: NDArray[np.bool_],
    radius: float,
    n_first: int | None = None,
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
    n_first : int, optional
        If given, each pair has one of the first ``n_first`` atoms; by default, all atoms.
    """
    n_atoms = len(positions)
    system = np.repeat(np.arange(len(cells)), np.diff(system_ptr))
    origins = positions[system_ptr[:-1]]  # far from zero, positions have fewer digits
    bins = _bins(positions - origins[system], system, system_ptr, cells, periodic, radius)
    counts = np.zeros(n_atoms, dtype=np.int64)  # so that `compile_ahead` allocates nothing
    row_ptr = np.zeros(n_atoms + 1, dtype=np.int64)
    lists = bins.points, bins.members, bins.ptr, bins.rank, bins.own
    grid = bins.first, bins.counts, bins.reach, bins.bits
    first = n_atoms if n_first is None else n_first
    given = system, cells, periodic, *lists, *grid, radius * radius, first, row_ptr
    run(_find, n_atoms, *given, counts[:0], counts)
    np.cumsum(counts, out=row_ptr[1:])
    n_pairs = int(row_ptr[-1])
    keys = np.empty(n_pairs + n_atoms, dtype=np.int64)
    run(_find, n_atoms, *given, keys, counts)
    senders, reverse = (np.empty(n_pairs, dtype=np.int32) for _ in range(2))
    shifts = np.empty((n_pairs, 3), dtype=np.int32)
    codes = system, bins.offsets, bins.reach, bins.bits
    run(_sort, n_atoms, row_ptr, keys, *codes, senders, shifts)
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
    counts = _bin_counts(spans / radius, np.diff(system_ptr))
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
        points=np.ascontiguousarray(points[members].T),
        members=members,
        ptr=ptr,
        rank=rank,
        own=own,
        offsets=offsets.astype(np.int64),
        first=first,
        counts=counts,
        reach=reach,
        bits=np.ceil(np.log2(2 * reach + 1)).astype(np.int64),
    )


def _bin_counts(wanted: FloatArray, n_atoms: NDArray[np.int32]) -> IntArray:
    """Return numbers of bins, [B, 3], as wanted unless there would be many more bins than atoms."""
    most = np.maximum(4 * n_atoms, FEWEST_BINS)
    counts = np.maximum(wanted, 1.0)
    while (is_many := np.floor(counts).prod(axis=1) > most).any():
        rows = np.flatnonzero(is_many)
        axes = counts[rows].argmax(axis=1)
        counts[rows, axes] = np.maximum(counts[rows, axes] / 2, 1.0)
    return counts.astype(np.int64)


@algebra
def _translation(cells, s, u, v, w):
    """Return the vector of a lattice translation, whose opposite has the opposite vector."""
    return (
        u * cells[s, 0, 0] + v * cells[s, 1, 0] + w * cells[s, 2, 0],
        u * cells[s, 0, 1] + v * cells[s, 1, 1] + w * cells[s, 2, 1],
        u * cells[s, 0, 2] + v * cells[s, 1, 2] + w * cells[s, 2, 2],
    )


@algebra
def _squared_distance(points, p, m, translation):
    """Return the squared distance of a point from a periodic image of another one."""
    dx = (points[0, p] - points[0, m]) - translation[0]
    dy = (points[1, p] - points[1, m]) - translation[1]
    dz = (points[2, p] - points[2, m]) - translation[2]
    return dx * dx + dy * dy + dz * dz


@algebra
def _n_bits(bits, s):
    """Return the number of bits of the code of a translation."""
    return bits[s, 0] + bits[s, 1] + bits[s, 2]


@algebra
def _code(s, reach, bits, t0, t1, t2):
    """Return the code of a lattice translation, which sorts like it."""
    first, second = t0 + reach[s, 0], t1 + reach[s, 1]
    return (first << bits[s, 1] | second) << bits[s, 2] | (t2 + reach[s, 2])


@algebra
def _write_pair(senders, shifts, e, key, i, offsets, s, reach, bits):
    """Write the sender and the lattice translation of a pair of an atom."""
    b0, b1, b2 = bits[s, 0], bits[s, 1], bits[s, 2]
    j, first, second = key >> (b0 + b1 + b2), key >> (b1 + b2), key >> b2
    senders[e] = j
    t0 = (first & ((1 << b0) - 1)) - reach[s, 0]
    t1 = (second & ((1 << b1) - 1)) - reach[s, 1]
    t2 = (key & ((1 << b2) - 1)) - reach[s, 2]
    for axis, translation in enumerate((t0, t1, t2)):
        shifts[e, axis] = translation + offsets[i, axis] - offsets[j, axis]


@exact_loop
def _find(
    system, cells, periodic, points, members, ptr, rank, own, first_bin, counts, reach, bits,
    squared, n_first, row_ptr, keys, found, first, last,
):  # fmt: skip
    """Count the neighbors of each atom, or write their keys, which are not sorted.

    A key sorts like a sender and its lattice translation. Each atom has memory for one more.
    """
    writes = len(keys) > 0
    for i in range(first, last):
        s, p, out, count = system[i], rank[i], row_ptr[i] + i, 0
        n0, n1, n2 = counts[s, 0], counts[s, 1], counts[s, 2]
        r0, r1, r2 = reach[s, 0], reach[s, 1], reach[s, 2]
        open0, open1, open2 = not periodic[s, 0], not periodic[s, 1], not periodic[s, 2]
        n_bits = _n_bits(bits, s)
        takes_all = i < n_first
        for d0 in range(own[i, 0] - r0, own[i, 0] + r0 + 1):
            t0 = d0 // n0  # the periodic image to which a bin belongs
            for d1 in range(own[i, 1] - r1, own[i, 1] + r1 + 1):
                t1 = d1 // n1
                row = first_bin[s] + ((d0 - t0 * n0) * n1 + d1 - t1 * n1) * n2
                for d2 in range(own[i, 2] - r2, own[i, 2] + r2 + 1):
                    t2 = d2 // n2
                    if (t0 != 0) & open0 | (t1 != 0) & open1 | (t2 != 0) & open2:
                        continue
                    home = row + d2 - t2 * n2
                    translation = _translation(cells, s, t0, t1, t2)
                    code = _code(s, reach, bits, t0, t1, t2)
                    itself = i if t0 | t1 | t2 == 0 else -1
                    if not writes:
                        for m in range(ptr[home], ptr[home + 1]):
                            is_near = _squared_distance(points, p, m, translation) < squared
                            count += is_near & (takes_all or members[m] < n_first)
                        continue
                    for m in range(ptr[home], ptr[home + 1]):
                        is_near = _squared_distance(points, p, m, translation) < squared
                        keys[out] = members[m] << n_bits | code
                        is_partner = takes_all or members[m] < n_first
                        out += is_near & is_partner & (members[m] != itself)
        if not writes:
            found[i] = count - takes_all  # without itself


@exact_loop
def _sort(row_ptr, keys, system, offsets, reach, bits, senders, shifts, first, last):
    """Sort the keys of each atom by Shell's method, and write their senders and translations."""
    for i in range(first, last):
        s, start, count, gap = system[i], row_ptr[i] + i, row_ptr[i + 1] - row_ptr[i], 1
        while 3 * gap < count:
            gap = 3 * gap + 1
        while gap > 0:
            for a in range(start + gap, start + count):
                key, b = keys[a], a
                while b >= start + gap and keys[b - gap] > key:
                    keys[b] = keys[b - gap]
                    b -= gap
                keys[b] = key
            gap //= 3
        for e in range(row_ptr[i], row_ptr[i + 1]):
            _write_pair(senders, shifts, e, keys[e + i], i, offsets, s, reach, bits)


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
