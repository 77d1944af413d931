"""Threads that share the work of a step, each with single-threaded products.

The libraries that compute PyTorch's products divide them among threads by themselves. If matrices
have few rows, they then sum in another order, so bits would depend on the number of threads. Their
threads also keep the processor busy for a while after each product, so that others wait.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import Any

import torch


class _Number(threading.local):
    """Number of threads that the caller of a step wants, while PyTorch itself takes one."""

    value: int | None = None


class _Turns:
    """Turns of steps of several threads: one with helpers at a time, or any number without.

    PyTorch's number of threads partly belongs to the process. A step that ends restores it, which
    would change the products of another step.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._without_helpers = 0
        self._has_helpers = False

    def begin(self) -> int:
        """Wait for a turn, set the number of threads to one, and return the caller's."""
        with self._condition:
            while True:
                self._condition.wait_for(lambda: not self._has_helpers)
                count = torch.get_num_threads()
                if count == 1:
                    self._without_helpers += 1
                    return count
                if not self._without_helpers:
                    self._has_helpers = True
                    torch.set_num_threads(1)
                    return count
                self._condition.wait()

    def end(self, count: int) -> None:
        """End a turn, given the number of threads that `begin` returned."""
        with self._condition:
            if count == 1:
                self._without_helpers -= 1
            else:
                torch.set_num_threads(count)
                self._has_helpers = False
            self._condition.notify_all()


_wanted = _Number()
_turns = _Turns()


def _after_fork() -> None:
    """Forget the turns of other threads, which do not survive a fork."""
    global _turns  # noqa: PLW0603 - the process is another one
    _turns = _Turns()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_after_fork)


def n_threads() -> int:
    """Return the number of threads to use: that of PyTorch, outside `own_threads`."""
    return _wanted.value or torch.get_num_threads()


@contextmanager
def own_threads() -> Iterator[None]:
    """Let PyTorch use one thread in each of ours, and restore its number at the end.

    Entering it takes a few microseconds.
    """
    if _wanted.value is not None:
        yield
        return
    turns = _turns
    _wanted.value = turns.begin()
    try:
        yield
    finally:
        turns.end(_wanted.value)
        _wanted.value = None


def in_parallel(function: Callable[..., None], pieces: Sequence[tuple[Any, ...]]) -> None:
    """Call a function with the arguments of each piece, in this thread and others.

    Each thread takes the next piece when it has finished one. Pieces must not depend on the number
    of threads, and write to separate memory.
    """
    rest = iter(pieces)

    def work() -> None:
        for piece in rest:
            function(*piece)

    with own_threads():
        shares = [_Share(work) for _ in range(min(n_threads(), len(pieces)) - 1)]
        for helper, share in zip(_helpers(len(shares)), shares, strict=False):
            helper.put(share)
        try:
            work()
        finally:
            errors = [error for share in shares if (error := share.finish()) is not None]
        if errors:
            raise errors[0]


class _Share:
    """Work that another thread may join if it begins before the work is finished.

    So no thread waits for another that other programs or callers keep from running.

    Parameters
    ----------
    work : callable
        Returns when there is nothing left to be done.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._is_taken, self._is_running = threading.Lock(), threading.Lock()
        self._is_running.acquire()
        self._error: BaseException | None = None

    def run(self) -> None:
        """Work in another thread, unless it is too late."""
        if not self._is_taken.acquire(blocking=False):
            return
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - returned by `finish`
            self._error = error
        finally:
            self._is_running.release()

    def finish(self) -> BaseException | None:
        """Wait for the other thread, if it has begun, and return its error."""
        if not self._is_taken.acquire(blocking=False):
            self._is_running.acquire()
        return self._error


_queues: dict[int, list[SimpleQueue[_Share]]] = {}


def _helpers(count: int) -> list[SimpleQueue[_Share]]:
    """Return the queues of threads of this process, as many as can be started.

    Threads of a parent do not survive a fork. They begin 20 µs earlier than those of
    `concurrent.futures`, and a process that ends does not wait for them.
    """
    queues = _queues.setdefault(os.getpid(), [])
    with suppress(RuntimeError):  # if the process ends, or has too many threads
        while len(queues) < count:
            queue: SimpleQueue[_Share] = SimpleQueue()
            is_ready = threading.Event()
            given = queue, is_ready
            threading.Thread(target=_help, args=given, name="mlff_triton", daemon=True).start()
            is_ready.wait()
            queues.append(queue)
    return queues[:count]


def _help(queue: SimpleQueue[_Share], is_ready: threading.Event) -> None:
    torch.set_num_threads(1)  # while the caller's number is one, too: see `_Turns`
    _wanted.value = 1  # calls of this thread belong to the turn of its caller
    is_ready.set()
    while True:
        queue.get().run()
