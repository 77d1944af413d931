"""Workers of a Dask cluster that somebody else has started."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Iterator
from concurrent import futures
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mlff_triton._common.remedies import install
from mlff_triton._common.text import first_line
from mlff_triton.errors import BackendError, InputError, MlffTritonError
from mlff_triton.jobs.workers import TASKS_PER_WORKER, Done, Work, compute

CONNECT = 10.0  # seconds until a scheduler must have answered
PATIENCE = 600.0  # seconds to wait for workers, because a queue may start them later
POLL = 5.0  # seconds between two looks at the workers


class Cluster:
    """All workers of a Dask scheduler. The job goes on if workers die, and new ones take part.

    Parameters
    ----------
    work : Work
        The computation. All workers must find the files that it loads.
    scheduler : str
        Address of the scheduler, such as "tcp://node1:8786", or the file that it has written.
    device : str
        Device of each worker: "auto" (its GPU if it has one), "cpu", "cuda" and so on.
    patience : float
        Seconds to wait for workers while there are none.

    Raises
    ------
    InputError
        If Dask is not installed, or the file cannot be read.
    BackendError
        If no scheduler answers or no worker comes.
    """

    def __init__(
        self, work: Work, scheduler: str, device: str = "auto", patience: float = PATIENCE
    ) -> None:
        if find_spec("distributed") is None:
            raise InputError(
                f"a scheduler needs Dask: {install('cluster')}, here and where workers run"
            )
        from distributed import Client

        for logger in ("distributed", "distributed.client"):
            logging.getLogger(logger).setLevel(logging.CRITICAL)  # errors are raised
        self._work, self._device, self._patience = work, device, patience
        self._name = scheduler
        address = _address(scheduler)
        try:
            self._client = Client(address, timeout=CONNECT, set_as_default=False)
        except (OSError, ValueError, asyncio.TimeoutError) as error:
            raise BackendError(
                f"no Dask scheduler answers at {address} ({first_line(error)}): start one by dask "
                "scheduler"
            ) from error
        self._capacity, self._looked = 0, 0.0

    def __enter__(self) -> Cluster:
        try:
            self._client.wait_for_workers(1, timeout=self._patience)
        except asyncio.TimeoutError as error:
            self.__exit__()
            raise self._deserted() from error
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    @property
    def capacity(self) -> int:
        """Number of tasks that keep all present workers busy."""
        if time.monotonic() - self._looked > POLL:
            threads = self._threads()
            self._capacity = TASKS_PER_WORKER * max(1, threads)
            self._looked = time.monotonic()
        return self._capacity

    def submit(self, content: Any) -> _Pending:
        """Give a task to the cluster."""
        with self._reached():
            future = self._client.submit(_compute, self._work, self._device, content, pure=False)
        return _Pending(self, future)

    def wait(self, future: Any) -> Done:
        """Return the results of a task, unless there are no workers for too long."""
        alone = 0.0
        while (done := self._look(future)) is None:
            alone = 0.0 if self._threads() else alone + POLL
            if alone >= self._patience:
                raise self._deserted()
        return done

    def _look(self, future: Any) -> Done | None:
        """Return the results of a task, or None if they are not there after a while."""
        from distributed import KilledWorker

        try:
            done: Done = future.result(timeout=POLL)
        except asyncio.TimeoutError:
            return None
        except KilledWorker as error:
            raise BrokenExecutor(first_line(error)) from error
        except (futures.CancelledError, asyncio.CancelledError) as error:
            raise self._gone() from error
        except MlffTritonError:
            raise
        except Exception as error:
            raise BackendError(
                f"a worker of {self._name} failed with {type(error).__name__} "
                f"({first_line(error)}): install the same versions there as here"
            ) from error
        return done

    def _threads(self) -> int:
        """Return the number of threads of all workers."""
        with self._reached():
            return sum(self._client.nthreads().values())

    @contextmanager
    def _reached(self) -> Iterator[None]:
        """Report that the scheduler cannot be reached."""
        try:
            yield
        except Exception as error:
            raise self._gone() from error

    def _gone(self) -> BackendError:
        return BackendError(f"the Dask scheduler {self._name} has gone: the same call continues")

    def _deserted(self) -> BackendError:
        return BackendError(
            f"the Dask scheduler {self._name} has no workers: start some by dask worker. The same "
            "call continues"
        )


class _Pending:
    """A task of a cluster."""

    def __init__(self, cluster: Cluster, future: Any) -> None:
        self._cluster, self._future = cluster, future

    def result(self) -> Done:
        return self._cluster.wait(self._future)


def _address(scheduler: str) -> str:
    """Return the address of a scheduler, which may be stored in a file."""
    if "://" in scheduler:
        return scheduler
    try:
        return str(json.loads(Path(scheduler).read_text())["address"])
    except FileNotFoundError:
        if ":" in scheduler:
            return scheduler
        raise InputError(
            f"there is no scheduler {scheduler!r}: give an address such as tcp://node1:8786, or "
            "the file that dask scheduler --scheduler-file writes"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{scheduler} is not the file of a Dask scheduler: {first_line(error)}"
        ) from error


def _compute(work: Work, device: str, content: Any) -> Done:
    """Compute a task on a worker."""
    return compute(work, _own_device(device), content)


def _own_device(device: str) -> str:
    """Return the GPU of this worker, if SLURM shows all GPUs of a node to each of its processes."""
    import torch

    count = torch.cuda.device_count()
    if device not in ("auto", "all") or count == 0:
        return "cpu" if device == "all" else device
    return f"cuda:{int(os.environ.get('SLURM_LOCALID', '0')) % count}"
