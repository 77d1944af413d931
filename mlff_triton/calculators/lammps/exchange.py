"""Exchange of tensors of atoms near the faces between ranks during a step."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mlff_triton.calculators.lammps.owners import Counts, Owners, counts_of, send_counts, send_rows
from mlff_triton.engine.part import reserved, spread
from mlff_triton.neighbors.box import FloatArray

Messages = list[tuple[int, Tensor]]
"""Tensors, and the rank that each goes to or comes from."""

ROUNDING = 1 + 1e-6
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
        """Send contiguous tensors, and overwrite others with the received ones."""


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
        """Send tensors, and wait for the received ones; see `Transport.deliver`."""
        arriving = [(rank, torch.empty_like(tensor, device="cpu")) for rank, tensor in received]
        requests = [self._comm.Irecv(tensor.numpy(), rank) for rank, tensor in arriving]
        requests += [self._comm.Isend(tensor.cpu().numpy(), rank) for rank, tensor in sent]
        for request in requests:
            request.Wait()
        for (_, tensor), (_, arrived) in zip(received, arriving, strict=True):
            tensor.copy_(arrived)


class FeatureExchange:
    """Tensors of atoms that other ranks own; see `mlff_triton.engine.part.Exchange`.

    All ranks construct it together and keep it while ghosts stay the same. Each atom is sent once
    to every rank that has a ghost of it, and ghosts of own atoms are these atoms themselves. Ranks
    that share no face neither send nor wait. If the network does not need some ghosts, each rank
    gets two messages when it needs all: one with atoms near it, and one with the others.

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
    is_near : bool [ghosts], optional
        True for the ghosts that the network needs. By default, it needs all ghosts. Either all
        ranks give it or none.
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
        is_near: NDArray[np.bool_] | None = None,
        last: FeatureExchange | None = None,
    ) -> None:
        self._comm, self._transport = comm, transport
        self.is_queued = transport.is_queued or comm.size == 1
        self._ranks = [rank for rank, n in enumerate(comm.allgather(n_own)) if n]
        is_other = (owners.ranks != comm.rank) & (n_own > 0)
        keys = owners.ranks[is_other].astype(np.int64) << _INDEX_BITS | owners.atoms[is_other]
        atoms, which = np.unique(keys, return_inverse=True)
        groups = [np.arange(len(atoms))]
        if is_near is not None:
            has_near = np.bincount(which, is_near[is_other], len(atoms)) > 0
            groups = [np.flatnonzero(has_near), np.flatnonzero(~has_near)]
        wanted = np.stack([counts_of(atoms[g] >> _INDEX_BITS, comm.size) for g in groups])
        given = np.stack([send_counts(comm, counts) for counts in wanted])
        indices = (atoms & ((1 << _INDEX_BITS) - 1)).astype(np.int32)
        asked = [
            send_rows(comm, indices[g], *counts)
            for g, *counts in zip(groups, wanted, given, strict=True)
        ]
        self.wanted: Counts = self._sizes(wanted, None if last is None else last.wanted)
        self.sent: Counts = self._sizes(given, None if last is None else last.sent)
        row_of = np.empty(len(atoms), dtype=np.int32)
        row_of[np.concatenate(groups)] = n_own + places(wanted, self.wanted)
        self.rows = owners.atoms.copy()
        self.rows[is_other] = row_of[which]
        self.n_near, self.n_rows = (
            n_own + int(sizes.sum()) for sizes in (self.wanted[0], self.wanted)
        )
        self.n_given_near = int(self.sent[0].sum())
        self.given = spread(int(self.sent.sum()), n_own)
        self.given[places(given, self.sent)] = np.concatenate(asked)

    def _sizes(self, counts: Counts, last: Counts | None) -> Counts:
        """Return the rows of the messages for each rank; both ends find the same numbers."""
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
        return (*self.sent.ravel().tolist(), *self.wanted.ravel().tolist(), *self._ranks)

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


def near_ghosts(positions: FloatArray, n_own: int, distance: float) -> NDArray[np.bool_]:
    """Find the ghosts within a distance in Å of the box around all own atoms.

    Parameters
    ----------
    positions : float64 [N, 3]
        Own atoms, and then ghosts, Å.
    n_own : int
        Number of own atoms. Without any, no ghost is near.
    distance : float
        Å.

    Returns
    -------
    bool [ghosts]
    """
    own, ghosts = positions[:n_own], positions[n_own:]
    if not n_own:
        return np.zeros(len(ghosts), dtype=bool)
    squares = np.zeros(len(ghosts))
    for x, y in zip(own.T, ghosts.T, strict=True):  # columns one by one, as NumPy is faster so
        squares += np.maximum(np.maximum(x.min() - y, y - x.max()), 0) ** 2
    near: NDArray[np.bool_] = squares < (distance * ROUNDING) ** 2
    return near


def places(counts: Counts, sizes: Counts) -> Counts:
    """Return the positions of the rows of messages with ``counts`` rows, padded to ``sizes``."""
    counts, sizes = counts.ravel(), sizes.ravel()
    begin = np.repeat(np.cumsum(sizes) - sizes, counts)
    rank = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    rows: Counts = (begin + rank).astype(np.int32)
    return rows


def _of_ranks(rows: Tensor, sizes: Counts) -> Messages:
    """Divide rows into messages for or from each rank that has some.

    Rows may be limited to the first messages, with the atoms that networks need.
    """
    used = sizes[:1] if len(rows) == sizes[0].sum() else sizes
    parts = rows.split(used.ravel().tolist())
    return [(k % sizes.shape[1], part) for k, part in enumerate(parts) if len(part)]
