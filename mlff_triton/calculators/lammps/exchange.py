"""Exchange of tensors of atoms near the faces between ranks, while a step is computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from mlff_triton.calculators.lammps.owners import Owners, counts_of, send_counts, send_rows

_INDEX_BITS = 32


class FeatureExchange:
    """Tensors of atoms that other ranks own; see `mlff_triton.engine.part.Exchange`.

    All ranks construct it together, for as long as ghosts stay the same. Each atom is sent once to
    every rank that has a ghost of it, and ghosts of own atoms are these atoms themselves. Ranks
    that share no face neither send nor wait.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        Communicator of all ranks.
    owners : Owners
        Owners of all ghosts.
    n_own : int
        Number of own atoms. A rank without any needs no ghosts.
    """

    def __init__(self, comm: Any, owners: Owners, n_own: int) -> None:
        self._comm, self._n_own = comm, n_own
        is_other = (owners.ranks != comm.rank) & (n_own > 0)
        keys = owners.ranks[is_other].astype(np.int64) << _INDEX_BITS | owners.atoms[is_other]
        atoms, which = np.unique(keys, return_inverse=True)
        self.rows = owners.atoms.copy()
        self.rows[is_other] = n_own + which
        self.n_rows = n_own + len(atoms)
        wanted = counts_of(atoms >> _INDEX_BITS, comm.size)
        given = send_counts(comm, wanted)
        indices = (atoms & ((1 << _INDEX_BITS) - 1)).astype(np.int32)
        asked = torch.from_numpy(send_rows(comm, indices, wanted, given)).long()
        self._to = [
            (rank, part) for rank, part in enumerate(asked.split(given.tolist())) if len(part)
        ]
        self._from = [(rank, int(count)) for rank, count in enumerate(wanted) if count]

    def extend(self, own: Tensor) -> Tensor:
        """Append the tensors [9, n, F] of other ranks to those of own atoms."""
        if not (self._to or self._from):
            return own
        host = own.cpu()
        sent = [host.index_select(1, indices) for _, indices in self._to]
        received = [host.new_empty(len(host), count, host.shape[2]) for _, count in self._from]
        requests = [
            self._comm.Irecv(tensor.numpy(), rank)
            for tensor, (rank, _) in zip(received, self._from, strict=True)
        ]
        requests += [
            self._comm.Isend(tensor.numpy(), rank)
            for tensor, (rank, _) in zip(sent, self._to, strict=True)
        ]
        for request in requests:
            request.Wait()
        return torch.cat([own, *(tensor.to(own.device) for tensor in received)], dim=1)
