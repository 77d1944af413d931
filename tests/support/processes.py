"""Processes that a process has started."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path


def children(of: int | None = None, *, patience: float = 0.0) -> list[int]:
    """Return the children of a process, by default this one, including those that are zombies.

    If there are any, this waits until there are none, but at most for `patience` seconds.
    """
    end = time.monotonic() + patience
    while (found := _children(of or os.getpid())) and time.monotonic() < end:
        time.sleep(0.02)
    return found


def _children(process: int) -> list[int]:
    found: list[int] = []
    for file in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):  # a thread may have ended
            found.extend(map(int, file.read_text().split()))
    return found


def is_alive(process: int) -> bool:
    """Return True if a process runs or sleeps."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"
