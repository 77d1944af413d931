"""Exchange of tensors of atoms near the faces between ranks, while a step is computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from mlff_triton.calculators.lammps.owners import Owners, counts_of, send_counts, send_rows

Messages = list[tuple[int, Tensor]]
"""Tensors, and the rank that each goes to or comes from."""

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
        self._ranks = [rank for rank, n in enumerate(comm.allgather(n_own)) if n]
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
        """Append the tensors [K, n, F] of other ranks to those of own atoms."""
        if not (self._to or self._from):
            return own
        host = own.cpu()
        sent = [(rank, host.index_select(1, indices)) for rank, indices in self._to]
        received = [
            (rank, host.new_empty(len(host), count, host.shape[2])) for rank, count in self._from
        ]
        self._pass(sent, received)
        return torch.cat([own, *(tensor.to(own.device) for _, tensor in received)], dim=1)

    def reduce(self, rows: Tensor) -> Tensor:
        """Add what other ranks found for own atoms to [K, n, F], in order of ranks."""
        first, *others = rows.split([self._n_own, *(count for _, count in self._from)], dim=1)
        own: Tensor = first.contiguous()
        sent = [
            (rank, tensor.cpu().contiguous())
            for (rank, _), tensor in zip(self._from, others, strict=True)
        ]
        received = [
            (rank, torch.empty(len(rows), len(indices), rows.shape[2], dtype=rows.dtype))
            for rank, indices in self._to
        ]
        self._pass(sent, received)
        for (_, indices), (_, tensor) in zip(self._to, received, strict=True):
            own.index_add_(1, indices.to(own.device), tensor.to(own.device))
        return own

    def gather(self, own: Tensor) -> list[Tensor]:
        """Return the tensors of all ranks with atoms."""
        host = own.cpu().numpy()
        others = [rank for rank in self._ranks if rank != self._comm.rank]
        requests = [self._comm.isend(host, rank) for rank in others]
        found = [
            own
            if rank == self._comm.rank
            else torch.from_numpy(self._comm.recv(source=rank)).to(own.device)
            for rank in self._ranks
        ]
        for request in requests:
            request.wait()
        return found

    @property
    def index(self) -> int:
        """Position of this rank among those with atoms."""
        return self._ranks.index(self._comm.rank)

    def _pass(self, sent: Messages, received: Messages) -> None:
        """Send tensors to ranks, and wait for those from others, which are overwritten."""
        requests = [self._comm.Irecv(tensor.numpy(), rank) for rank, tensor in received]
        requests += [self._comm.Isend(tensor.numpy(), rank) for rank, tensor in sent]
        for request in requests:
            request.Wait()
