"""Python processes that compute for this one and end with it, in any way.

Processes are started by ``spawn``, as CUDA does not survive a fork.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

PATIENCE = 10.0  # s in which a process without work must end


class Spawned:
    """A process that calls a function, and a pipe to it.

    Parameters
    ----------
    function : callable
        Called there with the other end of the pipe, then the arguments. The process ends when the
        function returns, as it must do once the pipe is closed.
    arguments : tuple
        Arguments that can be pickled.
    threads : int
        Number of threads of PyTorch there.

    Attributes
    ----------
    pipe : Connection
        The pipe.
    """

    def __init__(
        self, function: Callable[..., None], arguments: tuple[Any, ...], threads: int
    ) -> None:
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        given = theirs, threads, function, arguments
        self._process: BaseProcess = context.Process(target=_run, args=given, daemon=True)
        with _interrupts_blocked():
            self._process.start()
        theirs.close()

    @property
    def has_failed(self) -> bool:
        """True if the process has ended, and not because its function returned."""
        return bool(self._process.exitcode)

    def terminate(self) -> None:
        """End the process at once."""
        self._process.terminate()

    def end(self) -> None:
        """Close the pipe, and wait for the end of the process."""
        self.pipe.close()
        self._process.join(PATIENCE)
        self._process.kill()
        self._process.join()


def _run(
    pipe: Connection, threads: int, function: Callable[..., None], arguments: tuple[Any, ...]
) -> None:
    if "torch" in sys.modules:  # imported by the user's script
        sys.modules["torch"].set_num_threads(threads)
    os.environ["OMP_NUM_THREADS"] = str(threads)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    function(pipe, *arguments)


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Keep Ctrl-C from processes that are started in this context, at any time."""
    if sys.platform == "win32":
        yield
        return
    resource_tracker.ensure_running()  # whose start would unblock it again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with_parent() -> None:
    """End this process when the one that started it ends."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
