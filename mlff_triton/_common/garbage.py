"""Suspension of Python's garbage collection."""

from __future__ import annotations

import gc
from threading import Lock


class GarbageKept:
    """Context in which no garbage is collected, for any number of threads at a time.

    CUDA graphs among the garbage call the GPU's driver when they end, which breaks captures.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._users = 0
        self._was_enabled = False

    def __enter__(self) -> None:
        with self._lock:
            if not self._users:
                self._was_enabled = gc.isenabled()
                gc.disable()
            self._users += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if not self._users and self._was_enabled:
                gc.enable()


garbage_kept = GarbageKept()
