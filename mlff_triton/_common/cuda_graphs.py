"""Capture of CUDA graphs, in any thread of a process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any, TypeVar
from weakref import WeakSet

import torch
from torch import Tensor

from mlff_triton._common.garbage import garbage_kept

_CAPTURING = Lock()

Result = TypeVar("Result")


class GraphPool:
    """Memory that graphs share, on one device.

    PyTorch cannot capture a graph in a pool whose graphs have all been freed, and returns the
    memory of such a pool to the GPU. So a new pool is taken whenever there is no graph left.
    """

    def __init__(self) -> None:
        self._handle: Any = None  # of PyTorch's pool
        self._graphs: WeakSet[torch.cuda.CUDAGraph] = WeakSet()

    def capture(
        self, run: Callable[[], Result], stream: torch.cuda.Stream
    ) -> tuple[torch.cuda.CUDAGraph, Result]:
        """Capture a function whose kernels are compiled."""
        graph = torch.cuda.CUDAGraph()
        with _undisturbed():
            if not self._graphs:
                self._handle = torch.cuda.graph_pool_handle()
            capture = torch.cuda.graph(
                graph,
                pool=self._handle,
                stream=stream,
                capture_error_mode="thread_local",  # lets other threads continue
            )
            with capture:
                result = run()
            self._graphs.add(graph)
        return graph, result


def record(
    run: Callable[[], Result], pool: GraphPool, rehearse: Callable[[], object] | None = None
) -> tuple[torch.cuda.CUDAGraph, Result]:
    """Capture a function as a graph, after a first run that compiles its kernels.

    Parameters
    ----------
    run : callable
        Launches kernels on the current stream.
    pool : GraphPool
        Memory of its tensors.
    rehearse : callable, optional
        Runs first, instead of the same function.

    Returns
    -------
    torch.cuda.CUDAGraph
        The graph.
    Result
        Result of the function during capture; each replay overwrites its tensors.
    """
    current = torch.cuda.current_stream()
    stream = torch.cuda.Stream()
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        (rehearse or run)()
    current.wait_stream(stream)
    _make_room(stream.device)
    return pool.capture(run, stream)


def _make_room(device: torch.device) -> None:
    """Return memory that PyTorch keeps for itself to the GPU, if a capture might lack it.

    A capture can neither reuse nor free the memory that the first run has freed, and needs as much.
    """
    free, _ = torch.cuda.mem_get_info(device)
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if free < 2 * kept:
        torch.cuda.empty_cache()


def is_capturing(x: Tensor) -> bool:
    """Return True if operations on a tensor are being captured in a graph."""
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Allow one capture at a time in this process, without garbage collection during it.

    PyTorch's work before another capture breaks this one, and so does the deletion of a graph.
    """
    with _CAPTURING, garbage_kept:
        yield
