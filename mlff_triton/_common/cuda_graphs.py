"""Captures of CUDA graphs, of all threads of a process."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any, TypeVar

import torch
from torch import Tensor

_CAPTURING = Lock()

Result = TypeVar("Result")


def record(run: Callable[[], Result], pool: Any) -> tuple[torch.cuda.CUDAGraph, Result]:
    """Record a function as a graph, after a first run that compiles its kernels.

    Parameters
    ----------
    run : callable
        Launches kernels on the current stream.
    pool : tuple of int
        Of memory, as `torch.cuda.graph_pool_handle` gives it.

    Returns
    -------
    torch.cuda.CUDAGraph and whatever the function returned as it was recorded
    """
    current = torch.cuda.current_stream()
    stream = torch.cuda.Stream()
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        run()
    current.wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    capture = torch.cuda.graph(
        graph,
        pool=pool,
        stream=stream,
        capture_error_mode="thread_local",  # other threads go on working
    )
    with _undisturbed(), capture:
        return graph, run()


def is_capturing(x: Tensor) -> bool:
    """Whether what is done with a tensor now becomes part of a graph."""
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


@contextmanager
def _undisturbed() -> Iterator[None]:
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
