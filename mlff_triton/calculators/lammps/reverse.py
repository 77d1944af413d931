"""Reverse communication: what ranks compute for ghosts goes to the ranks that own the atoms.

LAMMPS has its own, but it ends before ``fix external`` computes forces.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csc_array

from mlff_triton.errors import InputError
from mlff_triton.neighbors.box import FloatArray

Integers = NDArray[np.integer[Any]]
Counts = NDArray[np.int32]


class ReverseCommunication:
    """Sums over all copies of each own atom, for as long as ghosts stay the same.

    All ranks construct and call it together. Sums have a fixed order, so they are reproducible.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        Communicator of all ranks.
    tags : int [N]
        Unique IDs of atoms, those of own atoms before those of ghosts.
    n_own : int
        Number of own atoms.

    Attributes
    ----------
    n_copies : int64 [n_own]
        Number of ghosts of each own atom on all ranks.

    Raises
    ------
    InputError
        If two atoms have the same ID. Only the rank that finds them raises.
    """

    def __init__(self, comm: Any, tags: Integers, n_own: int) -> None:
        self._comm = comm
        self._n_own = n_own
        owners, indices = _find_owners(comm, tags, n_own)
        self._order = _grouped(owners)
        self._to_owners = _counts(owners, comm.size)
        self._from_ranks = _exchange_counts(comm, self._to_owners)
        counts = self._to_owners, self._from_ranks
        into = _exchange(comm, indices[self._order], *counts)
        columns = np.arange(len(into) + 1, dtype=np.int32)
        # A column per ghost, with a 1 in the row of the own atom
        self._sum = csc_array((np.ones(len(into)), into, columns), shape=(n_own, len(into)))
        self._outgoing = np.empty((0, 0))
        self.n_copies = np.bincount(into, minlength=n_own)

    def add(self, values: FloatArray) -> FloatArray:
        """Return the values of own atoms plus those of all their ghosts.

        Parameters
        ----------
        values : float64 [N, K] or [n_own, K]
            Values of own atoms and ghosts, or those of own atoms alone, which are the sums then.

        Returns
        -------
        float64 [n_own, K]
        """
        own, ghosts = values[: self._n_own], values[self._n_own :]
        if self._comm.size == 1 and not len(ghosts):
            return own
        incoming = ghosts if self._comm.size == 1 else self._send(ghosts)
        sums: FloatArray = own + self._sum @ incoming
        return sums

    def _send(self, ghosts: FloatArray) -> FloatArray:
        """Send values of ghosts to the owners, and return what arrives here."""
        if self._outgoing.shape != ghosts.shape:
            self._outgoing = np.empty(ghosts.shape)
        np.take(ghosts, self._order, axis=0, out=self._outgoing, mode="clip")
        return _exchange(self._comm, self._outgoing, self._to_owners, self._from_ranks)


def _find_owners(comm: Any, tags: Integers, n_own: int) -> tuple[Counts, Counts]:
    """Return the rank that owns each ghost, and the index that the atom has on this rank.

    Each rank keeps the directory of some tags: rank r of those with ``tag % size == r``.
    """
    own, ghosts = tags[:n_own], tags[n_own:]
    if comm.size == 1:
        index_of = np.full(int(tags.max(initial=0)) + 1, -1, dtype=np.int32)
        index_of[own] = np.arange(n_own, dtype=np.int32)
        _check_unique(index_of[own] == np.arange(n_own))
        return np.zeros(len(ghosts), dtype=np.int32), index_of[ghosts]
    size = comm.size
    home = own % size
    order = _grouped(home)
    published = np.empty((n_own, 3), dtype=np.int64)  # position in the directory, rank, index
    published[:, 0] = own[order] // size
    published[:, 1] = comm.rank
    published[:, 2] = order
    entries = _exchange(comm, published, _counts(home, size))

    desk = ghosts % size
    order = _grouped(desk)
    to_desks = _counts(desk, size)
    from_ranks = _exchange_counts(comm, to_desks)
    asked = _exchange(comm, ghosts[order] // size, to_desks, from_ranks)

    length = max(entries[:, 0].max(initial=-1), asked.max(initial=-1)) + 1
    directory = np.full((int(length), 2), -1, dtype=np.int32)
    directory[entries[:, 0]] = entries[:, 1:]
    _check_unique((directory[entries[:, 0]] == entries[:, 1:]).all(axis=1))
    answers = _exchange(comm, directory[asked], from_ranks, to_desks)
    found = np.empty_like(answers)
    found[order] = answers
    return found[:, 0], found[:, 1]


def _check_unique(is_own: NDArray[np.bool_]) -> None:
    """Raise `InputError` if the directory has another atom under the ID of one."""
    if not is_own.all():
        raise InputError("several atoms have the same ID: give each its own by `reset_atoms id`")


def _grouped(ranks: Integers) -> Integers:
    """Return the stable order by rank; NumPy sorts 16-bit integers in linear time."""
    return np.argsort(ranks.astype(np.uint16), kind="stable")


def _counts(ranks: Integers, size: int) -> Counts:
    return np.bincount(ranks, minlength=size).astype(np.int32)


def _exchange_counts(comm: Any, counts: Counts) -> Counts:
    """Return how much each rank sends here, given how much goes to each."""
    received = np.empty_like(counts)
    comm.Alltoall(counts, received)
    return received


def _exchange(
    comm: Any, rows: NDArray[Any], to_ranks: Counts, from_ranks: Counts | None = None
) -> NDArray[Any]:
    """Send rows, grouped by rank, and return those received, in order of their ranks."""
    if comm.size == 1:
        return rows
    if from_ranks is None:
        from_ranks = _exchange_counts(comm, to_ranks)
    rows = np.ascontiguousarray(rows)
    received = np.empty((int(from_ranks.sum()), *rows.shape[1:]), dtype=rows.dtype)
    width = int(np.prod(rows.shape[1:]))
    comm.Alltoallv([rows, width * to_ranks], [received, width * from_ranks])
    return received
