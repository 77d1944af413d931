"""Capture of CUDA graphs, in any thread of a process."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import TypeVar

import torch
from torch import Tensor

_CAPTURING = Lock()

Result = TypeVar("Result")


class GraphPool:
    """Memory that graphs share, kept even while there is none.

    PyTorch fails to capture a graph in a pool whose graphs have all been freed, so the pool keeps
    a small one. Create a pool on any device, and use it on one.
    """

    def __init__(self) -> None:
        self._handle = torch.cuda.graph_pool_handle()
        self._kept: torch.cuda.CUDAGraph | None = None

    def capture(
        self, run: Callable[[], Result], stream: torch.cuda.Stream
    ) -> tuple[torch.cuda.CUDAGraph, Result]:
        """Capture a function whose kernels are compiled."""
        with _undisturbed():
            if self._kept is None:
                self._kept, _ = self._capture(lambda: torch.zeros(1, device="cuda"), stream)
            return self._capture(run, stream)

    def _capture(
        self, run: Callable[[], Result], stream: torch.cuda.Stream
    ) -> tuple[torch.cuda.CUDAGraph, Result]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(
            graph,
            pool=self._handle,
            stream=stream,
            capture_error_mode="thread_local",  # lets other threads continue
        ):
            return graph, run()


def record(run: Callable[[], Result], pool: GraphPool) -> tuple[torch.cuda.CUDAGraph, Result]:
    """Capture a function as a graph, after a first run that compiles its kernels.

    Parameters
    ----------
    run : callable
        Launches kernels on the current stream.
    pool : GraphPool
        Memory of its tensors.

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
    return pool.capture(run, stream)


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
