"""Workers of a job: this process, or other processes of this machine.

Processes are started and replaced here rather than by loky or pebble. If a worker of loky dies, all
tasks that wait fail with it. A worker of pebble outlives a parent that is killed, until its task is
done. Neither binds workers to devices.
"""

from __future__ import annotations

import os
import threading
import traceback
import warnings
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import BrokenExecutor, Future
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from mlff_triton._common.cores import n_cores
from mlff_triton._common.spawned import Spawned
from mlff_triton._common.text import first_line
from mlff_triton.errors import InputError

SHARE_OF_INPUT = 1 << 24  # bytes of text that make one more worker per GPU worth its start
SHARE_OF_MEMORY = 8 << 30  # bytes of a GPU per worker
MOST_PER_GPU = 8  # workers that read and write for one GPU

TASKS_PER_WORKER = 3  # at hand: one being computed, one to continue with, one that waits for others

MOST_WORKERS = 64  # of a machine with at most as many cores; others have one per core

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
        Warnings that a worker issued.
    unknown : int
        Number of results outside the training set of the model.
    """

    payload: bytes
    items: int
    errors: int = 0
    first_error: str = ""
    warnings: tuple[tuple[type[Warning], str], ...] = ()
    unknown: int = 0


class Work(Protocol, Hashable):
    """The computation of a job: small, picklable and hashable."""

    def start(self, device: str) -> Callable[[Any], Done]:
        """Load what the computation needs on a device, and return the function of a task."""
        ...


@runtime_checkable
class Divisible(Work, Protocol):
    """Work whose tasks are divided if workers die while computing them."""

    def nothing(self) -> Any:
        """Return a content without items."""
        ...

    def parts(self, content: Any) -> Sequence[Any]:
        """Return the parts of a content in order, or only the content if it cannot be divided."""
        ...

    def lost(self, content: Any, reason: str) -> Done:
        """Return the errors of a content that cannot be computed."""
        ...

    def merged(self, payloads: Sequence[bytes]) -> bytes:
        """Join the results of parts into the results of their task."""
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

    Processes are started by ``spawn``. They end with this context, or when this process ends in any
    way. A process that dies is replaced.

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
        """Give a task to the process with the fewest tasks."""
        return min(self._lanes, key=lambda lane: lane.load).submit(content)


class _Lane:
    """One process, its device, and its tasks, which a thread passes to it one by one."""

    def __init__(self, work: Work, device: str, threads: int) -> None:
        self._work, self._device, self._threads = work, device, threads
        self._queue: SimpleQueue[tuple[Future[Done], Any] | None] = SimpleQueue()
        self._pending: set[Future[Done]] = set()
        self._thread: threading.Thread | None = None
        self._process: Spawned | None = None
        self._is_stopped = False

    @property
    def load(self) -> int:
        return len(self._pending)

    def submit(self, content: Any) -> Future[Done]:
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, daemon=True)
            self._thread.start()
        future: Future[Done] = Future()
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        self._queue.put((future, content))
        return future

    def stop(self) -> None:
        """End the process. Running tasks are abandoned."""
        self._is_stopped = True
        self._queue.put(None)
        while self._thread is not None and self._thread.is_alive():
            process = self._process
            if self._pending and process is not None:
                process.terminate()
            self._thread.join(0.02)

    def _serve(self) -> None:
        """Give tasks to the process, and start another one if it dies."""
        while (item := self._queue.get()) is not None and not self._is_stopped:
            future, content = item
            try:
                process = self._process = self._process or self._started()
                process.pipe.send(content)
                done, trace = process.pipe.recv()
            except (EOFError, OSError) as error:
                self._end()
                future.set_exception(BrokenExecutor(first_line(error)))
            except Exception as error:  # noqa: BLE001 - raised by `result`
                future.set_exception(error)
            else:
                if isinstance(done, Exception):
                    done.__cause__ = RuntimeError(trace)
                    future.set_exception(done)
                else:
                    future.set_result(done)
        self._end()

    def _started(self) -> Spawned:
        return Spawned(_obey, (self._work, self._device), self._threads)

    def _end(self) -> None:
        """End the process, if there is one."""
        if self._process is not None:
            self._process.end()
            self._process = None


def devices_of(device: str) -> list[str]:
    """Return the named devices; "all" means all GPUs, and so does "auto" if there are any.

    Raises
    ------
    InputError, BackendError
        If the device is unknown or unavailable.
    """
    import torch

    from mlff_triton._common.devices import find_device, find_devices

    if device == "all" or (device == "auto" and torch.cuda.is_available()):
        find_device("cuda")
        return [f"cuda:{k}" for k in range(torch.cuda.device_count())]
    return [str(found) for found in find_devices(device)]


def workers_for(device: str, size: int) -> int | None:
    """Return the number of processes that keep GPUs busy with structures from text.

    A GPU computes small molecules several times as fast as one process reads and writes them. With
    several processes, others also read while one computes.

    Parameters
    ----------
    device : str
        As for `local_pool`.
    size : int
        Bytes of all input.

    Returns
    -------
    int or None
        Number of processes; None for the default of `local_pool`, on a CPU or for little input.

    Raises
    ------
    InputError, BackendError
        If the device is unknown or unavailable.
    """
    import torch

    devices = devices_of(device)
    if not devices[0].startswith("cuda"):
        return None
    memory = min(torch.cuda.get_device_properties(name).total_memory for name in devices)
    wanted = size // SHARE_OF_INPUT, n_cores()
    per_gpu = min(*(x // len(devices) for x in wanted), memory // SHARE_OF_MEMORY, MOST_PER_GPU)
    return per_gpu * len(devices) if per_gpu > 1 else None


def local_pool(
    work: Work, device: str = "auto", workers: int | None = None, *, apart: bool = False
) -> Pool:
    """Return the workers of this machine.

    A worker process takes seconds to start, and few jobs need one. It protects this process: if it
    dies, only its task is lost.

    Parameters
    ----------
    work : Work
        The computation.
    device : str
        "auto" (all GPUs if there are any), "all", "cpu", "cuda:1", "cuda:0,cuda:1" and so on.
    workers : int, optional
        Number of processes, which share the devices; by default, one per device, or this process
        for a single one.
    apart : bool
        If True, never compute in this process.

    Returns
    -------
    Pool
        The workers.

    Raises
    ------
    InputError, BackendError
        If the device or the number of workers is invalid.
    """
    devices = devices_of(device)
    count = len(devices) if workers is None else workers
    most = max(MOST_WORKERS, os.cpu_count() or 1)
    if not 1 <= count <= most:
        raise InputError(f"workers={count} is not valid: use 1 to {most} on this machine")
    if workers is None and count == 1 and not apart:
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


def _obey(pipe: Connection, work: Work, device: str) -> None:
    """Compute the tasks that come through a pipe, until it is closed."""
    while True:
        try:
            answer: tuple[Any, str] = compute(work, device, pipe.recv()), ""
        except EOFError:
            return
        except Exception as error:  # noqa: BLE001 - raised where the task came from
            answer = error, traceback.format_exc()
        pipe.send(answer)
