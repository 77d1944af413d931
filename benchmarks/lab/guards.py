"""Contain a faulty implementation: limit its time, silence its output, free its memory."""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from types import FrameType

import torch

from mlff_triton._common.timing import reset_peak


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise `TimeoutError` after a number of seconds, at the next line of Python in the block."""

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"took more than {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, stop)
    timer = signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-3))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def quiet() -> Iterator[None]:
    """Discard stdout and stderr of the block, also from C and from child processes."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = os.dup(1), os.dup(2)
    with tempfile.TemporaryFile("w") as sink:
        os.dup2(sink.fileno(), 1)
        os.dup2(sink.fileno(), 2)
        try:
            with redirect_stdout(sink), redirect_stderr(sink):
                yield
        finally:
            for target, source in enumerate(saved, start=1):
                os.dup2(source, target)
                os.close(source)


def clean_up(device: torch.device) -> None:
    """Free the memory of the last implementation and reset the peak."""
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
    gc.collect()
    reset_peak(device)
