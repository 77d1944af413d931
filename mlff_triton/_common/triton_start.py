"""Triton's preparations before its first kernel, once per process and beside other work."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from importlib import import_module
from threading import Thread

PARTS = ("triton.runtime.cache", "triton.experimental.gluon.nvidia.hopper")
"""Modules that the first launch imports; the first one has ``triton_key``."""


@cache
def start_triton() -> Thread:
    """Begin to import Triton and to hash its files, once per process; join the thread to wait.

    Before its first launch Triton hashes its own libraries, hundreds of megabytes, which identify
    the compiler in the names of cached kernels. This takes 0.3 s, in which other threads can work.
    """
    thread = Thread(target=_start, name="start-triton", daemon=True)
    thread.start()
    return thread


def _start() -> None:
    with suppress(Exception):  # the first launch does the same, and reports what is wrong
        modules = [import_module(name) for name in PARTS]
        modules[0].triton_key()
