"""A lock of threads that does not outlive its process."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from weakref import WeakSet

import torch

from mlff_triton.errors import BackendError


class ForkLock:
    """A reentrant lock. In a forked process, it is free or refuses to be acquired.

    Parameters
    ----------
    is_lost_by_fork : bool
        True if the guarded object does not work in a forked process, as on a GPU.

    Raises
    ------
    BackendError
        If it is acquired in a forked process where it must not be.
    """

    def __init__(self, is_lost_by_fork: bool) -> None:
        self._is_lost_by_fork = is_lost_by_fork
        self._is_lost = False
        self._lock = threading.RLock()
        _locks.add(self)

    def __enter__(self) -> None:
        if self._is_lost:
            raise BackendError(
                "CUDA does not work in a forked process: start processes with 'spawn' or "
                "'forkserver', or make the engine in the process that uses it"
            )
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        with suppress(RuntimeError):  # if a fork has freed it since it was acquired
            self._lock.release()

    def after_fork(self) -> None:
        """Forget the threads of the parent process, one of which may have held the lock."""
        self._lock = threading.RLock()
        self._is_lost = self._is_lost_by_fork


_locks: WeakSet[ForkLock] = WeakSet()


def _after_fork() -> None:
    """Make locks usable in a forked process, in which all other threads are gone.

    PyTorch would wait forever for its own threads.
    """
    if not _locks:
        return
    torch.set_num_threads(1)
    for lock in _locks:
        lock.after_fork()


if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
    os.register_at_fork(after_in_child=_after_fork)
