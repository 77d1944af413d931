"""Processes that train one model together, each with its share of every batch on its own device.

The first one is the process that was asked to train. Gradients and losses are summed over all of
them by NCCL within the captured step, or by Gloo on CPUs.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from mlff_triton._common.cores import n_cores
from mlff_triton._common.devices import made_current
from mlff_triton._common.spawned import Spawned
from mlff_triton._common.text import first_line
from mlff_triton.errors import BackendError, InputError
from mlff_triton.training.batches import since_first

LONGEST_WAIT = timedelta(minutes=30)  # for processes that read the same files
TIME_FOR_LAST_WORDS = 2.0  # s, of a process that ended early
SECONDS_BETWEEN_LOOKS = 0.5  # at the other processes


@dataclass(frozen=True)
class Ranks:
    """The place of this process among those that train together.

    Attributes
    ----------
    rank : int
        Its number; 0 leads the others, and alone writes files.
    count : int
        Number of processes.
    lost : threading.Event, optional
        Set when another process has ended early. From then on, GPUs no longer wait for it, and what
        they compute is wrong.
    """

    rank: int = 0
    count: int = 1
    lost: threading.Event | None = None

    @property
    def leads(self) -> bool:
        """True for the first of the processes."""
        return self.rank == 0

    def share(self, chosen: Tensor, units: Tensor | None = None) -> Tensor:
        """Return this process's share of the structures of a batch.

        Those with the same number in ``units`` [n], which are in one piece, stay together.
        """
        if units is None or self.count == 1:
            return chosen[self.rank :: self.count]
        first = torch.arange(len(chosen)) - since_first(units)
        return chosen[first * self.count // len(chosen) == self.rank]

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors of one device by their sums over all processes.

        A CUDA graph may hold this. All processes get the same bits.
        """
        if self.count == 1:
            return
        flat = torch.cat([tensor.detach().flatten().double() for tensor in tensors])
        dist.all_reduce(flat)
        sizes = [tensor.numel() for tensor in tensors]
        for tensor, total in zip(tensors, flat.split(sizes), strict=True):
            tensor.detach().copy_(total.view_as(tensor))

    def settle(self, device: torch.device) -> None:
        """Wait for the work on a device, so that its results may be used.

        Raises
        ------
        RuntimeError
            If another process has ended early, so that they are wrong.
        """
        if self.count > 1 and device.type == "cuda":
            torch.cuda.synchronize(device)
        if self.lost is not None and self.lost.is_set():
            raise RuntimeError("another process has ended early")

    def copy_first(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by those of the first process."""
        if self.count > 1:
            for tensor in tensors:
                dist.broadcast(tensor.detach(), 0)

    def agreed(self, answer: bool) -> bool:
        """Return the answer of the first process, after all processes have reached this point."""
        if self.count == 1:
            return answer
        said = torch.tensor([answer], dtype=torch.uint8)
        dist.broadcast(said, 0)
        return bool(said)


ALONE = Ranks()


class Follower(Protocol):
    """Function of a process that was started to help."""

    def __call__(self, ranks: Ranks, device: torch.device, *arguments: Any) -> object:
        """Do the share of this process; anything raised ends all processes."""
        ...


@contextmanager
def together(
    devices: Sequence[torch.device], follow: Follower, arguments: tuple[Any, ...]
) -> Iterator[Ranks]:
    """Start a process for each further device, and lead them from this one.

    Parameters
    ----------
    devices : sequence of torch.device
        Device of each process; the first is that of this process.
    follow : Follower
        Runs in each further process.
    arguments : tuple
        Its arguments after the ranks and the device. They can be pickled.

    Yields
    ------
    Ranks
        The place of this process.

    Raises
    ------
    BackendError
        If another process ended early, or could not start; the message gives the reason.
    InputError
        If this process uses torch.distributed already.
    """
    if len(devices) == 1:
        with made_current(devices[0]):
            yield ALONE
        return
    if dist.is_initialized():
        raise InputError("this process uses torch.distributed already: train on a single device")
    address = f"tcp://127.0.0.1:{_free_port()}"
    threads = max(1, n_cores() // len(devices))
    others: list[Spawned] = []
    try:
        for rank, device in enumerate(devices[1:], start=1):
            place = Ranks(rank, len(devices))
            given = address, place, str(device), follow, arguments
            others.append(Spawned(_help, given, threads))
        for process, device in zip(others, devices[1:], strict=True):
            _await_start(process, device)
        with made_current(devices[0]), _reported(others, devices):
            ranks = Ranks(0, len(devices), threading.Event())
            _join(address, ranks, devices[0])
            with _watched(others, devices[0], ranks):
                yield ranks
    except BaseException:
        _abandon(devices[0])
        raise
    finally:
        for process in others:
            process.terminate()
            process.end()
        if dist.is_initialized():
            dist.destroy_process_group()


def _await_start(process: Spawned, device: torch.device) -> None:
    """Wait until a process is ready to meet the others."""
    try:
        process.pipe.recv()
    except (EOFError, OSError):
        raise BackendError(
            f"the process for {device} ended as it started, for the reason above: a script that "
            "trains on several devices must do so below if __name__ == '__main__':"
        ) from None


@contextmanager
def _reported(others: Sequence[Spawned], devices: Sequence[torch.device]) -> Iterator[None]:
    """Raise the error of a process that ended early; its connection does not report it."""
    try:
        yield
    except RuntimeError as error:
        for process, device in zip(others, devices[1:], strict=True):
            reason = _last_words(process)
            if reason is not None:
                raise BackendError(
                    f"the training on {device} has ended, {reason}: the same command continues"
                ) from error
        raise


@contextmanager
def _watched(others: Sequence[Spawned], device: torch.device, ranks: Ranks) -> Iterator[None]:
    """Free this process's GPU once another process has ended early.

    The GPU would wait for it forever, and this process for the GPU.
    """
    done = threading.Event()

    def watch() -> None:
        while not done.wait(SECONDS_BETWEEN_LOOKS):
            if any(process.has_failed for process in others):
                assert ranks.lost is not None
                ranks.lost.set()
                if device.type == "cuda":
                    dist.distributed_c10d._get_default_group()._get_backend(device).abort()
                return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _last_words(process: Spawned) -> str | None:
    """Return why a process has ended, or None if it has not."""
    try:
        if not process.pipe.poll(TIME_FOR_LAST_WORDS):
            return None
        return f"as {process.pipe.recv()}"
    except (EOFError, OSError):
        return "perhaps for lack of memory"


def _abandon(device: torch.device) -> None:
    """Free a GPU that waits for processes that have ended."""
    if device.type == "cuda" and dist.is_initialized():
        dist.distributed_c10d._abort_process_group()


def _help(
    pipe: Connection,
    address: str,
    ranks: Ranks,
    device: str,
    follow: Follower,
    arguments: tuple[Any, ...],
) -> None:
    """Take part in a training, in a process that was started for it."""
    target = torch.device(device)
    pipe.send("ready")
    try:
        with made_current(target):
            _join(address, ranks, target)
            follow(ranks, target, *arguments)
        if target.type == "cuda":
            torch.cuda.synchronize(target)  # the others wait for the work it has begun
    except BaseException as error:  # noqa: BLE001 - told to the process that leads
        with suppress(OSError):
            pipe.send(first_line(error))
        os._exit(1)  # without waiting for a GPU that may wait for others
    os._exit(0)


def _join(address: str, ranks: Ranks, device: torch.device) -> None:
    """Meet the other processes."""
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(
        backend, address, timeout=LONGEST_WAIT, rank=ranks.rank, world_size=ranks.count
    )


def _free_port() -> int:
    """Return a port of this machine that nobody uses now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
