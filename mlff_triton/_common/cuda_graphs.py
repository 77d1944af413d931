"""Capture of CUDA graphs, in any thread of a process."""

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
    """Capture a function as a graph, after a first run that compiles its kernels.

    Parameters
    ----------
    run : callable
        Launches kernels on the current stream.
    pool : tuple of int
        Memory pool from `torch.cuda.graph_pool_handle`.

    Returns
    -------
    torch.cuda.CUDAGraph
        The graph.
    Result
        What the function returned during capture; each replay overwrites its tensors.
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
        capture_error_mode="thread_local",  # lets other threads continue
    )
    with _undisturbed(), capture:
        return graph, run()


def is_capturing(x: Tensor) -> bool:
    """Return True if operations on a tensor are being captured in a graph."""
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Allow one capture at a time in this process, without garbage collection meanwhile.

    PyTorch's work before another capture breaks this one, and so does the deletion of a graph.
    """
    with _CAPTURING:
        collecting = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if collecting:
                gc.enable()
