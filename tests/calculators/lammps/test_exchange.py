"""Messages between ranks: their sizes, their order, and their path."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from mlff_triton.calculators.lammps import nccl, ranks
from mlff_triton.calculators.lammps.exchange import (
    FeatureExchange,
    HostTransport,
    Messages,
    near_ghosts,
    places,
)
from mlff_triton.calculators.lammps.nccl import DeviceTransport, load_library
from mlff_triton.calculators.lammps.owners import Owners
from mlff_triton.engine.part import reserved
from mlff_triton.errors import BackendError
from tests.calculators.lammps.systems import needs_lammps

pytestmark = needs_lammps


class Pair:
    """A communicator of two ranks, of which the other one needs as many atoms as this one."""

    rank, size = 0, 2

    def __init__(self, asked: list[int]) -> None:
        self.asked = np.array(asked, dtype=np.int32)

    def allgather(self, value: object) -> list[object]:
        return [value, value]

    def Alltoall(self, _counts: np.ndarray, received: np.ndarray) -> None:  # noqa: N802 (mpi4py's)
        received[:] = [0, len(self.asked)]

    def Alltoallv(self, _sent: list[Any], received: list[Any]) -> None:  # noqa: N802
        received[0][:] = self.asked


class Mirror(Pair):
    """A communicator of two ranks, of which the other one does the same as this one."""

    def Alltoall(self, counts: np.ndarray, received: np.ndarray) -> None:  # noqa: N802
        received[:] = [0, counts[1]]

    def Alltoallv(self, sent: list[Any], received: list[Any]) -> None:  # noqa: N802
        received[0][:] = sent[0]


class Recorder:
    """A transport that returns what is sent, and remembers the sizes of messages."""

    def __init__(self, *, is_queued: bool) -> None:
        self.is_queued = is_queued
        self.sizes: list[tuple[int, int]] = []

    def deliver(self, sent: Messages, received: Messages) -> None:
        self.sizes += [
            (len(tensor), len(other))
            for (_, tensor), (_, other) in zip(sent, received, strict=False)
        ]
        for (_, tensor), (_, other) in zip(sent, received, strict=False):
            other.copy_(tensor[: len(other)])


def exchange(
    n_ghosts: int, transport: Recorder, last: FeatureExchange | None = None
) -> FeatureExchange:
    """Return the exchange of a rank with as many ghosts of another one, and an image."""
    owners = np.array([0] + [1] * n_ghosts, dtype=np.int32)
    atoms = np.array([7, *range(n_ghosts)], dtype=np.int32)
    comm = Pair(list(range(n_ghosts)))
    return FeatureExchange(comm, Owners(owners, atoms), 500, transport, last=last)


def test_messages_on_the_host_are_as_long_as_needed():
    found = exchange(5, Recorder(is_queued=False))
    assert found.rows.tolist() == [7, 500, 501, 502, 503, 504]
    assert (found.n_rows, found.given.tolist()) == (505, [0, 1, 2, 3, 4])


def test_queued_messages_keep_their_sizes():
    transport = Recorder(is_queued=True)
    first = exchange(100, transport)
    assert first.n_rows == 500 + reserved(100, 8)
    assert len(first.given) == reserved(100, 8)
    second = exchange(108, transport, first)
    assert second.plan == first.plan
    assert second.rows[1:].tolist() == list(range(500, 608))
    larger = exchange(200, transport, second)
    assert larger.plan != first.plan
    smaller = exchange(20, transport, larger)
    assert smaller.n_rows < first.n_rows


def test_plans_differ_if_a_rank_loses_its_atoms(monkeypatch):
    """Sums are those of all ranks with atoms, also of those that share no face."""
    first = exchange(100, Recorder(is_queued=True))
    monkeypatch.setattr(Pair, "allgather", lambda _, value: [value, 0])
    assert exchange(100, Recorder(is_queued=True)).plan != first.plan


def test_atoms_that_networks_do_not_need_have_messages_of_their_own():
    """These follow all messages of tensors. An atom is near if one of its ghosts is."""
    owners = Owners(np.array([1] * 4, dtype=np.int32), np.array([0, 1, 2, 1], dtype=np.int32))
    transport = Recorder(is_queued=False)
    is_near = np.array([False, False, True, True])
    comm = Mirror([])
    found = FeatureExchange(comm, owners, 500, transport, is_near)
    assert found.rows.tolist() == [502, 500, 501, 500]
    assert (found.n_near, found.n_rows) == (502, 503)
    assert (found.n_given_near, found.given.tolist()) == (2, [1, 2, 0])
    values = torch.arange(500.0)[found.given][:, None]
    for count in (2, 3):
        for back in (False, True):
            received = torch.zeros(count, 1)
            found.trade(values[:count], received, back=back)
            assert received[:, 0].tolist() == [1, 2, 0][:count]
    assert transport.sizes == [(2, 2), (2, 2), (2, 2), (1, 1), (2, 2), (1, 1)]


def test_ghosts_near_the_box_of_own_atoms_are_near():
    own = np.array([[0.0, 0, 0], [4, 4, 4]])
    ghosts = np.array(
        [[2.0, 2, 2], [2, 2, 7.0], [2, 2, 7.001], [6.1, 6.1, 6.1], [-1.7, -1.7, -1.7]]
    )
    positions = np.concatenate([own, ghosts])
    assert near_ghosts(positions, 2, 3.0).tolist() == [True, True, False, False, True]
    assert not near_ghosts(ghosts, 0, 99.0).any()


def test_values_arrive_in_their_rows():
    transport = Recorder(is_queued=True)
    found = exchange(3, transport)
    own = torch.arange(500.0)[:, None]
    received = torch.zeros(found.n_rows - 500, 1)
    found.trade(own[found.given], received)
    assert received[:3, 0].tolist() == [0, 1, 2]
    assert transport.sizes == [(16, 16)]


def test_sums_over_ranks_have_the_same_order_on_all_of_them():
    transport = Recorder(is_queued=True)
    own, other = exchange(3, transport).gather(torch.arange(2.0))
    assert own.tolist() == other.tolist() == [0, 1]


def test_places_leave_gaps_between_messages():
    counts, sizes = np.array([2, 0, 1], dtype=np.int32), np.array([4, 0, 3], dtype=np.int32)
    assert places(counts, sizes).tolist() == [0, 1, 4]


class Library:
    """A library for messages between GPUs, which writes down its calls."""

    def __init__(self, error: int = 0) -> None:
        self.calls: list[str] = []
        self.error = error

    def __getattr__(self, name: str) -> Any:
        def call(*_: object) -> int:
            self.calls.append(name)
            return self.error

        return call

    def ncclGetErrorString(self, code: int) -> bytes:  # noqa: N802 (its name)
        return f"error {code}".encode()


def device_transport(library: Library) -> DeviceTransport:
    transport = DeviceTransport.__new__(DeviceTransport)
    transport._library, transport._comm = library, ctypes.c_void_p()
    return transport


@pytest.fixture
def with_a_stream(monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))


@pytest.mark.usefixtures("with_a_stream")
def test_messages_of_gpus_are_one_group():
    library, rows = Library(), torch.zeros(4, 3)
    device_transport(library).deliver([(1, rows), (2, rows)], [(1, rows)])
    assert library.calls == ["ncclGroupStart", "ncclSend", "ncclSend", "ncclRecv", "ncclGroupEnd"]


@pytest.mark.usefixtures("with_a_stream")
def test_failures_of_gpus_are_one_line():
    with pytest.raises(
        BackendError, match=r"GPUs cannot exchange data \(error 2\): set NCCL_DEBUG"
    ):
        device_transport(Library(2)).deliver([], [])


def test_ranks_without_gpus_of_their_own_use_the_host(monkeypatch):
    made: list[object] = []
    monkeypatch.setattr(ranks, "load_library", Library)
    monkeypatch.setattr(ranks, "DeviceTransport", lambda *given: made.append(given) or "device")
    monkeypatch.setattr(
        torch.cuda,
        "device",
        lambda _: SimpleNamespace(__enter__=lambda _: None, __exit__=lambda *_: None),
    )
    properties = SimpleNamespace(uuid="GPU-0")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    same = Pair([])
    assert isinstance(ranks.choose_transport(same, torch.device("cpu")), HostTransport)
    assert isinstance(ranks.choose_transport(same, torch.device("cuda:0")), HostTransport)
    assert not made


def test_no_library_is_found_where_there_is_none(monkeypatch):
    monkeypatch.setattr(nccl, "LIBRARIES", ("libabsent.so.1",))
    assert load_library() is None
