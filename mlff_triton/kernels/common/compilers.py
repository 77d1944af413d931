"""Processes that compile kernels for this one.

Triton translates kernels with Python's lock held, so threads take turns. Other processes do not. A
process with a GPU and threads must not be forked, so they are forks of a new Python whose program
is `mlff_triton.kernels.common.child`. It starts while a model is prepared if kernels will probably
have to be compiled. This module does not import Triton.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Lock, Thread, Timer

import torch

from mlff_triton._common import cache
from mlff_triton._common.availability import is_interpreting
from mlff_triton._common.child_process import HIDDEN, can_start, receive, send
from mlff_triton._common.cores import n_cores
from mlff_triton._common.version import __version__
from mlff_triton.kernels.common.child import START, Task

MOST = 12  # processes; 16 take longer on 16 cores, as compilers of launchers run beside them
START_TIME = 30.0  # s; a process that is not ready by then counts as failed
PATIENCE = 120.0  # s for one kernel
GRACE = 5.0  # s to end before it is killed
IDLE = 60.0  # s after which processes end that were started early and never used
STEP = ("mlff_triton.kernels.tensornet.operators", "mlff_triton.kernels.neighbors.neighbor_list")
"""Modules with the kernels of a step."""

_KIND = "compiled"  # of files in the user's cache folder
_LOG = logging.getLogger("mlff_triton")
_LOCK = Lock()
_early: list[Compilers] = []  # one at most


class Compilers:
    """Processes that compile kernels, between `start` and `stop`.

    Parameters
    ----------
    n_cores : int
        Number of cores that they may use.

    Attributes
    ----------
    count : int
        Number of processes, one per core and at most `MOST`. A single one is not started.
    """

    def __init__(self, n_cores: int) -> None:
        self.count = min(n_cores, MOST)
        self._process: subprocess.Popen[bytes] | None = None
        self._is_started = False
        self._all: list[_Compiler] = []
        self._idle = SimpleQueue[_Compiler]()

    def start(self, modules: Iterable[str]) -> None:
        """Start the processes without waiting for them, unless this has been tried before.

        Parameters
        ----------
        modules : iterable of str
            Modules with kernels, which are imported once for all processes.
        """
        if self._is_started:
            return
        self._is_started = True
        if self.count < 2 or not hasattr(os, "fork") or not can_start():
            return
        try:
            self._start(list(modules))
        except Exception:  # noqa: BLE001 - this process compiles as well
            _LOG.debug("no other processes compile kernels", exc_info=True)
            self.stop()

    def _start(self, modules: list[str]) -> None:
        pairs = [socket.socketpair() for _ in range(self.count)]
        self._all = [_Compiler(own) for own, _ in pairs]
        theirs = [other.fileno() for _, other in pairs]
        try:
            self._process = subprocess.Popen(  # noqa: S603 - Python itself
                [sys.executable, "-I", "-c", START],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=theirs,
                env=os.environ | dict.fromkeys(HIDDEN, ""),
                start_new_session=True,  # an interrupt from the keyboard is for this process alone
            )
        finally:
            for _, other in pairs:
                other.close()
        assert self._process.stdin is not None
        version = {name: getattr(torch.version, name) for name in ("cuda", "hip")}
        send(self._process.stdin, (sys.version, sys.path, version, modules, theirs))
        for compiler in self._all:
            self._idle.put(compiler)

    def compile(self, task: Task) -> None:
        """Let a process compile a kernel into Triton's cache; return when it has, or cannot."""
        try:
            compiler = self._idle.get_nowait()
        except Empty:
            return
        problem = compiler.compile(task)
        if problem is None:
            problem = "it has ended, or does not answer"
        else:
            self._idle.put(compiler)
        if problem:
            _LOG.debug("another process has not compiled %s: %s", task.name, problem)

    def stop(self) -> None:
        """End the processes, without waiting for them."""
        for compiler in self._all:
            compiler.close()
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            with suppress(OSError):
                process.stdin.write(b"\n")
                process.stdin.close()
            end = Thread(target=_end, args=(process,), name="end-compilers", daemon=True)
            try:
                end.start()
            except RuntimeError:  # this process is ending
                process.kill()
                process.wait()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Wait until a process has ended, so that nothing is left of it."""
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class _Compiler:
    """One process, at the other end of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._pipe = connection.makefile("rwb")
        self._is_ready = False

    def compile(self, task: Task) -> str | None:
        """Return the error of compiling a kernel, which may be empty, or None without an answer."""
        try:
            content = pickle.dumps(task)
        except Exception as error:  # noqa: BLE001 - constants may be anything
            return f"{type(error).__name__}: {error}"
        try:
            if not self._is_ready:
                self._connection.settimeout(START_TIME)
                self._is_ready = receive(self._pipe) is not None
                self._connection.settimeout(PATIENCE)
            if not self._is_ready:
                return None
            send(self._pipe, content)
        except OSError:
            return None
        problem: str | None = receive(self._pipe)
        return problem

    def close(self) -> None:
        """Close the connection, also if a thread waits for an answer or a fork has a copy."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        with suppress(OSError):
            self._pipe.close()
        self._connection.close()


def start_early() -> None:
    """Start processes for the kernels of a step, if none of this package's are compiled yet."""
    if is_interpreting() or find_spec("triton") is None or cache.read(_KIND, _mark()) is not None:
        return
    with _LOCK:
        if _early:
            return
        compilers = Compilers(n_cores())
        _early.append(compilers)
    compilers.start(STEP)
    timer = Timer(IDLE, _end_unused, [compilers])
    timer.daemon = True
    timer.start()
    atexit.register(_end_unused, compilers)


def _end_unused(compilers: Compilers) -> None:
    with _LOCK:
        if compilers not in _early:
            return
        _early.clear()
    compilers.stop()


def take_compilers() -> Compilers:
    """Return processes that were started early, or new ones that are not started."""
    with _LOCK:
        return _early.pop() if _early else Compilers(n_cores())


def remember_compiled() -> None:
    """Record that kernels are compiled, so that later processes start no others early."""
    if cache.read(_KIND, _mark()) is None:
        cache.write(_KIND, _mark(), b"")


def _mark() -> str:
    """Return a name for the versions of compiler and kernels, and for Triton's cache folder."""
    home = os.environ.get("TRITON_HOME") or "~"
    folder = os.environ.get("TRITON_CACHE_DIR") or Path(home, ".triton", "cache")
    versions, inode = [__version__], 0
    with suppress(metadata.PackageNotFoundError):
        versions.append(metadata.version("triton"))
    with suppress(OSError, RuntimeError):
        folder = Path(folder).expanduser().absolute()
        inode = folder.stat().st_ino
    return hashlib.sha256(f"{versions} {folder} {inode}".encode()).hexdigest()
