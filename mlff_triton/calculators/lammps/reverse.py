"""Reverse communication: what ranks compute for ghosts goes to the ranks that own the atoms.

LAMMPS has its own, but it ends before ``fix external`` computes forces.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import csc_array

from mlff_triton.calculators.lammps.owners import (
    Owners,
    counts_of,
    grouped,
    send_counts,
    send_rows,
)
from mlff_triton.neighbors.box import FloatArray


class ReverseCommunication:
    """Sums over all copies of each own atom, for as long as ghosts stay the same.

    All ranks construct and call it together. Sums have a fixed order, so they are reproducible.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        Communicator of all ranks.
    owners : Owners
        Owners of all ghosts.
    n_own : int
        Number of own atoms.

    Attributes
    ----------
    n_copies : int64 [n_own]
        Number of ghosts of each own atom on all ranks.
    """

    def __init__(self, comm: Any, owners: Owners, n_own: int) -> None:
        self._comm = comm
        self._n_own = n_own
        self._order = grouped(owners.ranks)
        self._to_owners = counts_of(owners.ranks, comm.size)
        self._from_ranks = send_counts(comm, self._to_owners)
        counts = self._to_owners, self._from_ranks
        into = send_rows(comm, owners.atoms[self._order], *counts)
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
        return send_rows(self._comm, self._outgoing, self._to_owners, self._from_ranks)
