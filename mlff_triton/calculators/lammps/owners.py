"""Owners of ghosts, and how ranks send one another rows of arrays."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlff_triton.errors import InputError

Integers = NDArray[np.integer[Any]]
Counts = NDArray[np.int32]


class Owners(NamedTuple):
    """Owners of the atoms that ghosts are copies of.

    Attributes
    ----------
    ranks : int32 [ghosts]
        Rank that owns the atom.
    atoms : int32 [ghosts]
        Its index on that rank.
    """

    ranks: Counts
    atoms: Counts


def find_owners(comm: Any, tags: Integers, n_own: int) -> Owners:
    """Return the owners of ghosts; all ranks call this together.

    Each rank keeps the directory of some tags: rank r of those with ``tag % size == r``.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        Communicator of all ranks.
    tags : int [N]
        Unique IDs of atoms, those of own atoms before those of ghosts.
    n_own : int
        Number of own atoms.

    Raises
    ------
    InputError
        If two atoms have the same ID. Only the rank that finds them raises.
    """
    own, ghosts = tags[:n_own], tags[n_own:]
    if comm.size == 1:
        index_of = np.full(int(tags.max(initial=0)) + 1, -1, dtype=np.int32)
        index_of[own] = np.arange(n_own, dtype=np.int32)
        _check_unique(index_of[own] == np.arange(n_own))
        return Owners(np.zeros(len(ghosts), dtype=np.int32), index_of[ghosts])
    size = comm.size
    home = own % size
    order = grouped(home)
    published = np.empty((n_own, 3), dtype=np.int64)  # position in the directory, rank, index
    published[:, 0] = own[order] // size
    published[:, 1] = comm.rank
    published[:, 2] = order
    entries = send_rows(comm, published, counts_of(home, size))

    desk = ghosts % size
    order = grouped(desk)
    to_desks = counts_of(desk, size)
    from_ranks = send_counts(comm, to_desks)
    asked = send_rows(comm, ghosts[order] // size, to_desks, from_ranks)

    length = max(entries[:, 0].max(initial=-1), asked.max(initial=-1)) + 1
    directory = np.full((int(length), 2), -1, dtype=np.int32)
    directory[entries[:, 0]] = entries[:, 1:]
    _check_unique((directory[entries[:, 0]] == entries[:, 1:]).all(axis=1))
    answers = send_rows(comm, directory[asked], from_ranks, to_desks)
    found = np.empty_like(answers)
    found[order] = answers
    return Owners(found[:, 0], found[:, 1])


def _check_unique(is_own: NDArray[np.bool_]) -> None:
    """Raise `InputError` if the directory has another atom under the ID of one."""
    if not is_own.all():
        raise InputError("several atoms have the same ID: give each its own by `reset_atoms id`")


def grouped(ranks: Integers) -> Integers:
    """Return the stable order by rank; NumPy sorts 16-bit integers in linear time."""
    return np.argsort(ranks.astype(np.uint16), kind="stable")


def counts_of(ranks: Integers, size: int) -> Counts:
    """Return how often each rank occurs."""
    return np.bincount(ranks, minlength=size).astype(np.int32)


def send_counts(comm: Any, counts: Counts) -> Counts:
    """Return how much each rank sends here, given how much goes to each."""
    received = np.empty_like(counts)
    comm.Alltoall(counts, received)
    return received


def send_rows(
    comm: Any, rows: NDArray[Any], to_ranks: Counts, from_ranks: Counts | None = None
) -> NDArray[Any]:
    """Send rows, grouped by rank, and return those received, in order of their ranks."""
    if comm.size == 1:
        return rows
    if from_ranks is None:
        from_ranks = send_counts(comm, to_ranks)
    rows = np.ascontiguousarray(rows)
    received = np.empty((int(from_ranks.sum()), *rows.shape[1:]), dtype=rows.dtype)
    width = int(np.prod(rows.shape[1:]))
    comm.Alltoallv([rows, width * to_ranks], [received, width * from_ranks])
    return received
