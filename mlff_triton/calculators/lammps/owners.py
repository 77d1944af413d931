"""Owners of ghosts, and functions that send rows of arrays between ranks."""

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


class Directory:
    """Directory of the owners of atoms by ID, kept and queried by all ranks together.

    Rank r keeps the entries of IDs with ``ID % size == r``. Ranks publish their atoms; later, only
    atoms that are new or have a new index.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        Communicator of all ranks.
    """

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self.forget()

    def forget(self) -> None:
        """Make ranks publish all their atoms again, because IDs may belong to other atoms now."""
        self._n_total = -1
        self._published: Integers = np.zeros(0, dtype=np.int32)
        self._entries: Counts = np.zeros((0, 2), dtype=np.int32)  # rank and index

    def find_owners(self, tags: Integers, n_own: int, n_total: int) -> Owners:
        """Return the owners of ghosts.

        Parameters
        ----------
        tags : int [N]
            Unique IDs of atoms, those of own atoms before those of ghosts.
        n_own : int
            Number of own atoms.
        n_total : int
            Number of own atoms on all ranks. If it differs from the last one, ranks publish all
            atoms again.

        Raises
        ------
        InputError
            If two atoms that are published have the same ID. Only the rank that finds them raises.
        """
        own, ghosts = tags[:n_own], tags[n_own:]
        if self._comm.size == 1:
            index_of = np.full(int(tags.max(initial=0)) + 1, -1, dtype=np.int32)
            index_of[own] = np.arange(n_own, dtype=np.int32)
            _check_unique(index_of[own] == np.arange(n_own))
            return Owners(np.zeros(len(ghosts), dtype=np.int32), index_of[ghosts])
        if n_total != self._n_total:
            self.forget()
        self._n_total = n_total
        self._publish(own)
        return self._ask(ghosts)

    def _publish(self, own: Integers) -> None:
        """Bring the entries of own atoms up to date on the ranks that keep them."""
        comm, n_known = self._comm, min(len(own), len(self._published))
        is_new = np.ones(len(own), dtype=bool)
        np.not_equal(own[:n_known], self._published[:n_known], out=is_new[:n_known])
        self._published = own.copy()
        indices = np.flatnonzero(is_new)
        home = own[indices] % comm.size
        indices = indices[grouped(home)]
        published = np.empty((len(indices), 3), dtype=np.int64)  # position of the entry, and entry
        published[:, 0] = own[indices] // comm.size
        published[:, 1] = comm.rank
        published[:, 2] = indices
        received = send_rows(comm, published, counts_of(home, comm.size))
        kept, entries = received[:, 0], received[:, 1:]
        self._extend(kept)
        self._entries[kept] = entries
        _check_unique((self._entries[kept] == entries).all(axis=1))

    def _ask(self, ghosts: Integers) -> Owners:
        """Return the entries of ghosts from the ranks that keep them."""
        comm = self._comm
        desk = ghosts % comm.size
        order = grouped(desk)
        to_desks = counts_of(desk, comm.size)
        from_ranks = send_counts(comm, to_desks)
        wanted = (ghosts[order] // comm.size).astype(np.int64)
        asked = send_rows(comm, wanted, to_desks, from_ranks)
        self._extend(asked)
        answers = send_rows(comm, self._entries[asked], from_ranks, to_desks)
        found = np.empty_like(answers)
        found[order] = answers
        return Owners(found[:, 0], found[:, 1])

    def _extend(self, kept: Integers) -> None:
        """Allocate entries up to the highest of some positions."""
        missing = int(kept.max(initial=-1)) + 1 - len(self._entries)
        if missing > 0:
            free = np.full((missing, 2), -1, dtype=np.int32)
            self._entries = np.concatenate([self._entries, free])


def _check_unique(is_own: NDArray[np.bool_]) -> None:
    """Raise `InputError` if the directory has another atom under the same ID."""
    if not is_own.all():
        raise InputError("several atoms have the same ID: give each its own by `reset_atoms id`")


def grouped(ranks: Integers) -> Integers:
    """Return the stable order by rank; NumPy sorts 16-bit integers in linear time."""
    return np.argsort(ranks.astype(np.uint16), kind="stable")


def counts_of(ranks: Integers, size: int) -> Counts:
    """Return how often each rank occurs."""
    return np.bincount(ranks, minlength=size).astype(np.int32)


def send_counts(comm: Any, counts: Counts) -> Counts:
    """Return the number of rows from each rank, given the number of rows to each rank."""
    received = np.empty_like(counts)
    comm.Alltoall(counts, received)
    return received


def send_rows(
    comm: Any,
    rows: NDArray[Any],
    to_ranks: Counts,
    from_ranks: Counts | None = None,
    into: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Send rows, grouped by rank, and return those received, in order of their ranks.

    They are received into an array, if one is given.
    """
    if comm.size == 1:
        return rows
    if from_ranks is None:
        from_ranks = send_counts(comm, to_ranks)
    rows = np.ascontiguousarray(rows)
    received = into
    if received is None:
        received = np.empty((int(from_ranks.sum()), *rows.shape[1:]), dtype=rows.dtype)
    width = int(np.prod(rows.shape[1:]))
    comm.Alltoallv([rows, width * to_ranks], [received, width * from_ranks])
    return received
