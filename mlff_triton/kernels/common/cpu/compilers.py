"""Compilation of loops side by side, in this process and in others.

Numba compiles one function at a time in a process, whatever the number of threads. So loops are
sent to other processes, which send back machine code. If these cannot be started, or fail, this
process compiles everything.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections import deque
from collections.abc import Collection, Iterable
from contextlib import suppress
from threading import Thread
from typing import Any, NamedTuple

from numba.core.registry import cpu_target
from numba.core.serialize import dumps

from mlff_triton._common.child_process import can_start, receive, send
from mlff_triton._common.garbage import garbage_kept
from mlff_triton._common.notice import Notice
from mlff_triton.kernels.common.cpu.child import START

LOOPS_PER_PROCESS = 3  # fewer loops are compiled before another process has started
MOST = 8  # processes


class Task(NamedTuple):
    """A loop to be compiled for types of arguments.

    Attributes
    ----------
    loop : Dispatcher
        The loop.
    types : tuple of numba.types.Type
        Types of all arguments.
    """

    loop: Any
    types: tuple[Any, ...]

    @property
    def is_loaded(self) -> bool:
        """True if this process has the machine code."""
        return self.types in self.loop.overloads

    @property
    def is_stored(self) -> bool:
        """True if the cache has the machine code."""
        found: bool = self.loop._cache.holds(self.types, cpu_target.target_context)
        return found

    def compile(self) -> None:
        """Compile the loop, or take its machine code from the cache."""
        self.loop.compile(self.types)


class Child:
    """Another process that compiles loops, as a context."""

    def __init__(self) -> None:
        command = [sys.executable, "-I", "-c", START]
        self._process = subprocess.Popen(  # noqa: S603 - Python itself
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout

    def serve(self, tasks: deque[Task]) -> None:
        """Take tasks from the left and compile them, until there are none or anything fails."""
        with suppress(Exception):
            pickle.dump((sys.version, sys.path), self._input)
            self._input.flush()
            if receive(self._output) is None:
                return
            while (task := _next(tasks)) is not None:
                send(self._input, dumps(tuple(task)))
                content = receive(self._output)
                if content is None:
                    return
                task.loop._cache.receive(task.types, cpu_target.target_context, content)

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        for pipe in (self._input, self._output):
            with suppress(OSError):
                pipe.close()
        self._process.wait()


def compile_all(tasks: Iterable[Task], n_processes: int) -> None:
    """Compile loops, or load them from the cache, and report it if this takes long.

    Parameters
    ----------
    tasks : iterable of Task
        The loops.
    n_processes : int
        Number of processes that may compile, including this one.
    """
    missing = [task for task in dict.fromkeys(tasks) if not task.is_loaded]
    absent = [task for task in missing if not task.is_stored]
    if absent:
        _compile(absent, n_processes)
    for task in missing:
        task.compile()


def _compile(tasks: Collection[Task], n_processes: int) -> None:
    """Compile loops in several processes, starting with those that take longest.

    Processes that do so independently, such as those of LAMMPS, find each other's loops in the
    cache. A process without helpers therefore has its own order.
    """
    count = min(n_processes, len(tasks) // LOOPS_PER_PROCESS, MOST) - 1
    order = _size if count > 0 else _any_order
    queue = deque(sorted(tasks, key=order, reverse=True))
    children = _start(count)
    threads = [Thread(target=c.serve, args=(queue,), daemon=True) for c in children]
    try:
        with garbage_kept, Notice() as notice:  # collecting takes a tenth of the time
            for thread in threads:
                thread.start()
            while (task := _next(queue)) is not None:
                done = len(tasks) - len(queue) - 1
                notice.show(f"compiling loops for this processor: {done} of {len(tasks)}")
                if not task.is_stored:
                    task.compile()
            for thread in threads:
                thread.join()
    finally:
        for child in children:
            child.stop()


def _next(queue: deque[Task]) -> Task | None:
    """Take the first task, unless other threads have taken all."""
    try:
        return queue.popleft()
    except IndexError:
        return None


def _start(count: int) -> list[Child]:
    """Start processes, as many as possible."""
    children: list[Child] = []
    if can_start():
        with suppress(OSError):
            children.extend(Child() for _ in range(count))
    return children


def _size(task: Task) -> int:
    """Return a measure of the time that a loop takes to be compiled."""
    return len(task.loop.py_func.__code__.co_code)


def _any_order(task: Task) -> int:
    """Return a number that differs between processes."""
    return hash((os.getpid(), task.loop.__qualname__))
