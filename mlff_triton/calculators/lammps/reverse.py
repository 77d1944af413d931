"""Reverse communication: values for ghosts are sent to the ranks that own the atoms.

LAMMPS's own reverse communication ends before ``fix external`` computes forces.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mlff_triton.calculators.lammps.owners import (
    Owners,
    counts_of,
    grouped,
    send_counts,
    send_rows,
)
from mlff_triton.neighbors.box import FloatArray


class ReverseCommunication:
    """Sums over all copies of each own atom, while ghosts stay the same.

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
        self._atoms = send_rows(comm, owners.atoms[self._order], *counts).astype(np.intp)
        self._outgoing = self._incoming = np.empty((0, 0))  # buffers
        self.n_copies = np.bincount(self._atoms, minlength=n_own)

    def add(self, values: FloatArray, sums: FloatArray) -> None:
        """Add the values of ghosts to those of their atoms.

        Parameters
        ----------
        values : float64 [N, K] or [n_own, K]
            Values of own atoms and ghosts; in a single process, values of own atoms alone may be
            given, which are then the sums.
        sums : float64 [n_own, K]
            Overwritten with the sums.
        """
        sums[:] = values[: self._n_own]
        ghosts = values[self._n_own :]
        if self._comm.size == 1 and not len(ghosts):
            return
        incoming = self._send(ghosts)
        for k in range(values.shape[1]):
            np.add.at(sums[:, k], self._atoms, incoming[:, k])

    def _send(self, ghosts: FloatArray) -> FloatArray:
        """Send values of ghosts to the owners, and return the received values."""
        if self._outgoing.shape != ghosts.shape:
            self._outgoing = np.empty(ghosts.shape)
            self._incoming = np.empty((len(self._atoms), ghosts.shape[1]))
        np.take(ghosts, self._order, axis=0, out=self._outgoing, mode="clip")
        counts = self._to_owners, self._from_ranks
        return send_rows(self._comm, self._outgoing, *counts, self._incoming)
