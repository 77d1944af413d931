"""Exchange of tensors of atoms near the faces between ranks, while a step is computed."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from mlff_triton.calculators.lammps.owners import Counts, Owners, counts_of, send_counts, send_rows
from mlff_triton.engine.part import reserved, spread

Messages = list[tuple[int, Tensor]]
"""Tensors, and the rank that each goes to or comes from."""

_INDEX_BITS = 32


class Transport(Protocol):
    """Path of tensors from rank to rank.

    Attributes
    ----------
    is_queued : bool
        True if `deliver` queues its work on the current stream of a GPU.
    """

    @property
    def is_queued(self) -> bool:
        """Same as the attribute."""

    def deliver(self, sent: Messages, received: Messages) -> None:
        """Send contiguous tensors, and overwrite others with what arrives."""


class HostTransport:
    """Tensors that MPI sends from the host's memory.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        Communicator of all ranks.
    """

    is_queued = False

    def __init__(self, comm: Any) -> None:
        self._comm = comm

    def deliver(self, sent: Messages, received: Messages) -> None:
        """Send tensors, and wait for those that arrive; see `Transport.deliver`."""
        arriving = [(rank, torch.empty_like(tensor, device="cpu")) for rank, tensor in received]
        requests = [self._comm.Irecv(tensor.numpy(), rank) for rank, tensor in arriving]
        requests += [self._comm.Isend(tensor.cpu().numpy(), rank) for rank, tensor in sent]
        for request in requests:
            request.Wait()
        for (_, tensor), (_, arrived) in zip(received, arriving, strict=True):
            tensor.copy_(arrived)


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
    transport : Transport
        Path of tensors from rank to rank.
    last : FeatureExchange, optional
        The exchange before this one. If work is queued, messages have a reserve, so that they keep
        their sizes while the number of atoms near a face fluctuates.
    """

    def __init__(
        self,
        comm: Any,
        owners: Owners,
        n_own: int,
        transport: Transport,
        last: FeatureExchange | None = None,
    ) -> None:
        self._comm, self._transport = comm, transport
        self.is_queued = transport.is_queued or comm.size == 1
        self._ranks = [rank for rank, n in enumerate(comm.allgather(n_own)) if n]
        is_other = (owners.ranks != comm.rank) & (n_own > 0)
        keys = owners.ranks[is_other].astype(np.int64) << _INDEX_BITS | owners.atoms[is_other]
        atoms, which = np.unique(keys, return_inverse=True)
        wanted = counts_of(atoms >> _INDEX_BITS, comm.size)
        given = send_counts(comm, wanted)
        indices = (atoms & ((1 << _INDEX_BITS) - 1)).astype(np.int32)
        asked = send_rows(comm, indices, wanted, given)
        self.wanted: Counts = self._sizes(wanted, None if last is None else last.wanted)
        self.sent: Counts = self._sizes(given, None if last is None else last.sent)
        self.rows = owners.atoms.copy()
        self.rows[is_other] = n_own + places(wanted, self.wanted)[which]
        self.n_rows = n_own + int(self.wanted.sum())
        self.given = spread(int(self.sent.sum()), n_own)
        self.given[places(given, self.sent)] = asked

    def _sizes(self, counts: Counts, last: Counts | None) -> Counts:
        """Return the rows of the message for each rank; both ends find the same numbers."""
        if not self.is_queued:
            return counts
        needed = reserved(counts, 8)
        if last is None:
            return needed
        kept: Counts = np.where((counts <= last) & (last <= 2 * needed), last, needed)
        return kept

    @property
    def plan(self) -> object:
        """Sizes of all messages, and ranks with atoms; see `mlff_triton.engine.part.Exchange`."""
        return (*self.sent.tolist(), *self.wanted.tolist(), *self._ranks)

    def trade(self, sent: Tensor, received: Tensor, *, back: bool = False) -> None:
        """Send rows of values to other ranks, or back; see `mlff_triton.engine.part.Exchange`."""
        to, fro = (self.wanted, self.sent) if back else (self.sent, self.wanted)
        messages = _of_ranks(sent, to), _of_ranks(received, fro)
        if any(messages):
            self._transport.deliver(*messages)

    def gather(self, own: Tensor) -> list[Tensor]:
        """Return the tensors of all ranks with atoms; if work is queued, all have one shape."""
        if self.is_queued:
            return self._gather_queued(own)
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

    def _gather_queued(self, own: Tensor) -> list[Tensor]:
        own = own.contiguous()
        found = [own if rank == self._comm.rank else torch.empty_like(own) for rank in self._ranks]
        others = [
            (rank, tensor)
            for rank, tensor in zip(self._ranks, found, strict=True)
            if rank != self._comm.rank
        ]
        if others:
            self._transport.deliver([(rank, own) for rank, _ in others], others)
        return found

    @property
    def index(self) -> int:
        """Position of this rank among those with atoms."""
        return self._ranks.index(self._comm.rank)


def places(counts: Counts, sizes: Counts) -> Counts:
    """Return where the rows of messages with ``counts`` lie if each is as long as ``sizes``."""
    begin = np.repeat(np.cumsum(sizes) - sizes, counts)
    rank = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    rows: Counts = (begin + rank).astype(np.int32)
    return rows


def _of_ranks(rows: Tensor, sizes: Counts) -> Messages:
    """Divide rows into messages for or from each rank that has some."""
    parts = rows.split(sizes.tolist())
    return [(rank, part) for rank, part in enumerate(parts) if len(part)]
