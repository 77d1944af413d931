"""Devices of ranks: GPUs in turn, shared GPUs, and cores of CPUs."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mlff_triton.calculators.lammps import ranks
from tests.calculators.lammps.systems import needs_lammps

pytestmark = needs_lammps


class Machine:
    """A communicator whose ranks are all on one machine, seen by one of them."""

    def __init__(self, rank: int, size: int, gpus: list[str]) -> None:
        self.rank, self.size, self.gpus = rank, size, gpus

    def Split_type(self, _kind: int) -> Machine:  # noqa: N802 (mpi4py's)
        return self

    def Free(self) -> None:  # noqa: N802
        pass

    def allgather(self, value: Any) -> list[Any]:
        return self.gpus if isinstance(value, str) else [value] * self.size


@pytest.fixture
def with_gpus(monkeypatch: pytest.MonkeyPatch):
    """Return a function that pretends that this process sees some GPUs."""
    current: list[str] = []
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # so that threads of this process stay

    def pretend(count: int) -> list[str]:
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "set_device", current.append)
        monkeypatch.setattr(
            torch.cuda, "get_device_properties", lambda name: SimpleNamespace(uuid=name)
        )
        return current

    return pretend


@pytest.mark.parametrize(("rank", "expected"), [(0, "cuda:0"), (3, "cuda:3"), (5, "cuda:1")])
@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_ranks_take_gpus_in_turn(with_gpus, rank: int, expected: str, device: str) -> None:
    current = with_gpus(4)
    machine = Machine(rank, 6, [f"cuda:{k % 4}" for k in range(6)])
    if rank == 0:
        with pytest.warns(UserWarning, match="6 ranks share 4 GPUs, .* one rank per GPU"):
            assert ranks.choose_device(machine, device) == expected
    else:
        assert ranks.choose_device(machine, device) == expected
    assert current == [expected]


def test_one_rank_per_gpu_gives_no_warning(with_gpus) -> None:
    with_gpus(1)  # as if a scheduler had given each rank its own
    machine = Machine(0, 2, ["first", "second"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ranks.choose_device(machine, "auto") == "cuda:0"


def test_a_device_that_is_named_is_that_of_all_ranks(with_gpus) -> None:
    current = with_gpus(4)
    assert ranks.choose_device(Machine(1, 2, []), "cuda:3") == "cuda:3"
    assert current == []


@pytest.mark.parametrize(("n_gpus", "device"), [(0, "auto"), (4, "cuda:1")])
def test_ranks_share_the_cores(
    with_gpus, monkeypatch: pytest.MonkeyPatch, n_gpus: int, device: str
) -> None:
    with_gpus(n_gpus)
    threads: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    monkeypatch.setattr(ranks.os, "sched_getaffinity", lambda _pid: set(range(16)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    machine = Machine(1, 3, [f"cuda:{k}" for k in range(3)])
    assert ranks.choose_device(machine, "auto") == device
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    ranks.choose_device(machine, "auto")
    assert threads == [5]
