"""Compilation of kernels side by side, before their first launch.

A step launches some thirty kernels. If each is compiled when it is launched, all but one core wait:
for Triton's compiler in Python, for LLVM and ptxas, and for the C compiler that makes Triton's
launchers. Here, forked processes compile all of them and leave the results in Triton's cache on
disk, where the launches find them. (Threads would take turns, as a third of the compiler is
Python.) The processes inherit all imported modules, so they start at once, and they never touch the
GPU. If anything about this fails, launches compile their kernels themselves.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import connection, get_context
from pathlib import Path
from typing import Any

from triton.runtime import driver
from triton.runtime.cache import get_cache_manager
from triton.runtime.jit import JITFunction

from mlff_triton._common.availability import is_interpreting
from mlff_triton._common.garbage import garbage_kept
from mlff_triton._common.triton_start import start_triton

QUIET = 1.0  # s before progress is shown
PATIENCE = 120.0  # s for one kernel, after which launches compile the remaining ones

_LOCK = threading.RLock()  # as a function may call another one that compiles ahead
_LOG = logging.getLogger("mlff_triton")

Compiler = Callable[[], Any]


def compile_ahead(launch: Callable[[], object]) -> None:
    """Compile all kernels that a function launches, without running them.

    It never raises an error. If all kernels are compiled already, it only calls the function.

    Parameters
    ----------
    launch : callable
        It is called once, and the launches of this thread do nothing meanwhile. PyTorch's operators
        do run, with inputs that no kernel has written, so they must be harmless for any values:
        they must not use results of kernels as indices, nor write to tensors that are used later.
    """
    if is_interpreting():
        return
    try:
        start_triton().join()
        with _LOCK:
            missing = [fn for key, fn in _kernels_of(launch).items() if not _is_on_disk(key)]
            if len(missing) > 1:
                _compile_side_by_side(missing)
    except Exception:  # noqa: BLE001 - whatever fails here, the launches themselves report or repair
        _LOG.debug("kernels are compiled one after another", exc_info=True)


def _kernels_of(launch: Callable[[], object]) -> dict[str, Compiler]:
    """Return the compilers of kernels that have no machine code in this process yet, by key."""
    from triton import AsyncCompileMode  # absent from Triton 3.3

    compilers: dict[str, Compiler] = {}

    class Collector(AsyncCompileMode):
        """Keeps the kernels that Triton would compile in other threads."""

        def submit(self, key: str, compile_fn: Compiler, finalize_fn: object) -> None:
            del finalize_fn
            compilers[key] = compile_fn

    with Collector(executor=None), _launches_skipped():
        launch()
    return compilers


@contextmanager
def _launches_skipped() -> Iterator[None]:
    """Let launches of this thread end before the kernel runs, as `JITFunction.warmup` does."""
    run, caller = JITFunction.run, threading.get_ident()

    def compile_only(kernel: Any, *args: Any, warmup: bool, **options: Any) -> Any:
        warmup = warmup or threading.get_ident() == caller
        return run(kernel, *args, warmup=warmup, **options)

    JITFunction.run = compile_only
    try:
        yield
    finally:
        JITFunction.run = run


def _is_on_disk(key: str) -> bool:
    """Return True if Triton's cache has the machine code of a kernel."""
    folder = get_cache_manager(hashlib.sha256(key.encode()).hexdigest()).cache_dir
    return any(Path(folder).glob("__grp__*.json"))


def _compile_side_by_side(compilers: Sequence[Compiler]) -> None:
    """Compile kernels in as many processes as there are cores."""
    context = get_context("fork")
    started, finished = context.Value("i", 0), context.Value("i", 0)
    shared = compilers, started, finished
    count = min(len(os.sched_getaffinity(0)), len(compilers))
    workers = [context.Process(target=_work, args=shared, daemon=True) for _ in range(count)]
    try:
        with warnings.catch_warnings(), garbage_kept:  # also in the forks
            warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
            for worker in workers:
                worker.start()
        _wait([worker.sentinel for worker in workers], lambda: finished.value, len(compilers))
    finally:
        for worker in workers:
            if worker.pid is not None:
                worker.kill()
                worker.join()


def _work(compilers: Sequence[Compiler], started: Any, finished: Any) -> None:
    """Compile kernels and their launchers until none is left, in a process of its own."""
    with Path(os.devnull).open("w") as sink:
        os.dup2(sink.fileno(), 1)
        os.dup2(sink.fileno(), 2)
    while (number := _increment(started)) < len(compilers):
        with suppress(Exception):
            kernel = compilers[number]()
            driver.active.launcher_cls(kernel.src, kernel.metadata)
        _increment(finished)


def _increment(counter: Any) -> int:
    """Add one to a shared integer and return its last value."""
    with counter.get_lock():
        last = int(counter.value)
        counter.value = last + 1
    return last


def _wait(sentinels: list[int], finished: Callable[[], int], count: int) -> None:
    """Wait until processes have ended, or none has finished a kernel for long; show progress."""
    begin = latest = time.monotonic()
    done, told = 0, ""
    while sentinels and time.monotonic() < latest + PATIENCE:
        ended = connection.wait(sentinels, timeout=0.1)
        sentinels = [sentinel for sentinel in sentinels if sentinel not in ended]
        if finished() > done:
            done, latest = finished(), time.monotonic()
        if time.monotonic() > begin + QUIET:
            text = f"compiling kernels for this GPU: {done} of {count}"
            if text != told:
                _tell(text, first=not told)
                told = text
    if told and _is_terminal():
        sys.stderr.write("\r" + " " * len(told) + "\r")


def _tell(text: str, *, first: bool) -> None:
    """Show a text instead of the last one on a terminal, or else log the first one."""
    if _is_terminal():
        sys.stderr.write("\r" + text)
        sys.stderr.flush()
    elif first:
        _LOG.info(text)


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()
