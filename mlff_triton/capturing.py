"""Captures of CUDA graphs, of all threads of a process."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

_CAPTURING = Lock()


@contextmanager
def undisturbed() -> Iterator[None]:
    """One capture at a time in this process, and no garbage collected meanwhile.

    What PyTorch does before a capture, and when an older graph is thrown away, breaks it.
    """
    with _CAPTURING:
        collecting = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if collecting:
                gc.enable()
