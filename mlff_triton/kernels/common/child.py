"""Program of a process whose forks compile kernels for another process.

It has Triton and our kernels, but no PyTorch, GPU or other threads, so it forks safely. Each fork
compiles the kernels sent to its own socket, and leaves the machine code in Triton's cache. Cache
keys equal those of the other process, because they depend on the sources of kernels, types,
constants, options, target, environment and compiler, which are all the same here. If anything
differs nevertheless, the other process does not find the code, and compiles it itself.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from threading import Thread
from typing import Any, NamedTuple

from mlff_triton._common.child_process import HIDDEN, leave_pytorch_out, receive, send

START = f"""
import pickle, sys
version, sys.path[:], *arguments = pickle.load(sys.stdin.buffer)
if version == sys.version:
    from {__name__} import main
    main(*arguments)
"""
"""Code of the process, which gets the paths of its parent and the arguments of `main`."""


class Task(NamedTuple):
    """A kernel to be compiled, in Triton's form: see ``triton.compiler.ASTSource``.

    Attributes
    ----------
    module, name : str
        Module that has the kernel, and its name there.
    signature, constants, attributes : dict
        Types, constants, and alignments of its arguments.
    target : GPUTarget
        Architecture of the GPU.
    options : dict
        Options of the compiler.
    environment : dict
        Environment of the parent, which may have changed since this process started.
    """

    module: str
    name: str
    signature: Mapping[str, Any]
    constants: Mapping[tuple[int, ...], Any]
    attributes: Mapping[tuple[int, ...], Any]
    target: Any
    options: Mapping[str, Any]
    environment: Mapping[str, str]

    def compile(self) -> None:
        """Compile the kernel into Triton's cache."""
        import triton
        from triton.compiler import ASTSource

        from mlff_triton.kernels.common.cache_keys import settle_key

        os.environ.clear()
        os.environ.update(self.environment)
        os.environ.update(dict.fromkeys(HIDDEN, ""))
        kernel = getattr(import_module(self.module), self.name)
        settle_key(kernel)
        source = ASTSource(kernel, self.signature, self.constants, self.attributes)
        triton.compile(source, target=self.target, options=self.options)


def main(torch_version: Mapping[str, Any], modules: Sequence[str], sockets: Sequence[int]) -> None:
    """Import modules, and fork a process per socket; end them with the next byte of the input.

    Parameters
    ----------
    torch_version : dict
        Attributes of ``torch.version``.
    modules : sequence of str
        Modules with kernels, which the forks need not import any more.
    sockets : sequence of int
        File descriptors. Each fork uses its own: it sends a string as soon as it is ready, and
        then, until the other end is closed, it receives a pickled `Task` and sends the error or an
        empty string.
    """
    leave_pytorch_out(torch_version)
    _import(modules)
    gc.freeze()
    connections = [socket.socket(fileno=number) for number in sockets]
    forks = [_fork(connection, connections) for connection in connections]
    for connection in connections:
        connection.close()
    sys.stdin.buffer.read(1)
    for fork in forks:
        with suppress(ProcessLookupError):
            os.killpg(fork, signal.SIGKILL)  # with the assembler, which may be at work
        os.waitpid(fork, 0)


def _import(modules: Iterable[str]) -> None:
    """Import Triton and modules; hash Triton's libraries in a thread, which takes as long."""
    cache = import_module("triton.runtime.cache")
    thread = Thread(target=cache.triton_key)
    thread.start()
    for name in ("triton.compiler.code_generator", *modules):
        with suppress(Exception):  # the forks try again
            import_module(name)
    thread.join()


def _fork(connection: socket.socket, connections: Iterable[socket.socket]) -> int:
    """Return the process of a fork, which serves a connection and closes all others."""
    process = os.fork()
    if process:
        with suppress(OSError):
            os.setpgid(process, process)  # in both processes, because either may be first
        return process
    try:
        with suppress(OSError):
            os.setpgid(0, 0)
        for other in connections:
            if other is not connection:
                other.close()
        serve(connection)
    finally:
        os._exit(0)


def serve(connection: socket.socket) -> None:
    """Compile kernels until the other end is closed."""
    with connection, connection.makefile("rwb") as pipe:
        send(pipe, "")
        while (task := receive(pipe)) is not None:
            problem = ""
            try:
                pickle.loads(task).compile()  # noqa: S301 - of our own process
            except Exception as error:  # noqa: BLE001 - the parent compiles the kernel, and reports
                problem = f"{type(error).__name__}: {error}"
            send(pipe, problem)
