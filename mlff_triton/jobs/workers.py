"""Workers of a job: this process, or other processes of this machine."""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Hashable
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from multiprocessing import get_context, parent_process
from typing import Any, NamedTuple, Protocol, TypeVar

from mlff_triton.errors import InputError

TASKS_PER_WORKER = 3  # at hand: one that it computes, one to go on with, one that waits for others

Self = TypeVar("Self")


class Done(NamedTuple):
    """Results of a task.

    Attributes
    ----------
    payload : bytes
        Bytes to be appended to the output.
    items, errors : int
        Number of results, and of those that are errors.
    first_error : str
        Message of the first error.
    warnings : tuple of (type, str)
        Warnings that a worker gave.
    """

    payload: bytes
    items: int
    errors: int = 0
    first_error: str = ""
    warnings: tuple[tuple[type[Warning], str], ...] = ()


class Work(Protocol, Hashable):
    """The computation of a job: small, picklable and hashable."""

    def start(self, device: str) -> Callable[[Any], Done]:
        """Load what the computation needs on a device, and return the function of a task."""
        ...


class Result(Protocol):
    """Results of a task that may not be known yet."""

    def result(self) -> Done:
        """Wait for the results, and return them or raise the task's error."""
        ...


class Pool(Protocol):
    """Workers, as a context. A `BrokenExecutor` means that a worker was lost with its task."""

    def __enter__(self: Self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    @property
    def capacity(self) -> int:
        """Number of tasks that keep all workers busy."""
        ...

    def submit(self, content: Any) -> Result:
        """Begin the task of this content."""
        ...


class OwnProcess:
    """The only worker is this process.

    Parameters
    ----------
    work : Work
        The computation.
    device : str
        Device of the computation.
    """

    capacity = 1

    def __init__(self, work: Work, device: str) -> None:
        self._work, self._device = work, device

    def __enter__(self) -> OwnProcess:
        return self

    def __exit__(self, *_: object) -> None:
        _started.clear()

    def submit(self, content: Any) -> Future[Done]:
        """Compute a task."""
        future: Future[Done] = Future()
        try:
            future.set_result(compute(self._work, self._device, content))
        except Exception as error:  # noqa: BLE001 - raised by `result`, as in other pools
            future.set_exception(error)
        return future


class Processes:
    """One process per device of a list, which may name devices repeatedly.

    Processes are started by ``spawn``. They end when this process ends, in any way. One that dies
    is replaced.

    Parameters
    ----------
    work : Work
        The computation.
    devices : list of str
        Device of each process.
    threads : int
        Number of threads of each process.
    """

    def __init__(self, work: Work, devices: list[str], threads: int = 1) -> None:
        self.capacity = TASKS_PER_WORKER * len(devices)
        self._lanes = [_Lane(work, device, threads) for device in devices]

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        for lane in self._lanes:
            lane.stop()

    def submit(self, content: Any) -> Future[Done]:
        """Give a task to the process that has the fewest."""
        return min(self._lanes, key=lambda lane: lane.load).submit(content)


class _Lane:
    """One process, its device and its tasks."""

    def __init__(self, work: Work, device: str, threads: int) -> None:
        self._work, self._device, self._threads = work, device, threads
        self._executor: ProcessPoolExecutor | None = None
        self._pending: set[Future[Done]] = set()

    @property
    def load(self) -> int:
        return len(self._pending)

    def submit(self, content: Any) -> Future[Done]:
        try:
            future = self._submit(content)
        except BrokenExecutor:
            self.stop()
            future = self._submit(content)
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        return future

    def stop(self) -> None:
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)
            self._executor = None

    def _submit(self, content: Any) -> Future[Done]:
        if self._executor is None:
            self._executor = ProcessPoolExecutor(
                1, get_context("spawn"), initializer=_initialize, initargs=(self._threads,)
            )
        return self._executor.submit(compute, self._work, self._device, content)


def devices_of(device: str) -> list[str]:
    """Return the devices of a name: all GPUs for "auto", if there are any, and for "all".

    Raises
    ------
    InputError, BackendError
        If the device is unknown or unavailable.
    """
    import torch

    from mlff_triton._common.devices import find_device

    if device == "all" or (device == "auto" and torch.cuda.is_available()):
        find_device("cuda")
        return [f"cuda:{k}" for k in range(torch.cuda.device_count())]
    return [str(find_device(device))]


def local_pool(work: Work, device: str = "auto", workers: int | None = None) -> Pool:
    """Return the workers of this machine.

    Parameters
    ----------
    work : Work
        The computation.
    device : str
        "auto" (all GPUs if there are any), "all", "cpu", "cuda", "cuda:1" and so on.
    workers : int, optional
        Number of workers, which share the devices; by default, one per device.

    Returns
    -------
    Pool
        This process alone if there is one worker.

    Raises
    ------
    InputError, BackendError
        If the device or the number of workers is invalid.
    """
    devices = devices_of(device)
    count = len(devices) if workers is None else workers
    if count < 1:
        raise InputError(f"workers={count} is not valid: use at least 1")
    if count == 1:
        return OwnProcess(work, devices[0])
    import torch

    threads = max(1, torch.get_num_threads() // count)
    return Processes(work, [devices[k % len(devices)] for k in range(count)], threads)


_started: dict[tuple[Work, str], Callable[[Any], Done]] = {}
_lock = threading.Lock()  # a worker of a cluster may have several threads


def compute(work: Work, device: str, content: Any) -> Done:
    """Compute a task in this process, which loads the model for its first task."""
    with _lock, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function = _started.get((work, device))
        if function is None:
            _started.clear()
            function = _started[work, device] = work.start(device)
        done = function(content)
    found = dict.fromkeys((warning.category, str(warning.message)) for warning in caught)
    return done._replace(warnings=tuple(found))


def _initialize(threads: int) -> None:
    """Prepare a process that works for another one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the first process
    if "torch" in sys.modules:  # imported by the user's script
        sys.modules["torch"].set_num_threads(threads)
    os.environ["OMP_NUM_THREADS"] = str(threads)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process when the one that started it ends."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
