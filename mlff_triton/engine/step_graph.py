"""A sequence of launches that is captured once and replayed from then on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import torch

from mlff_triton._common.cuda_graphs import GraphPool, record
from mlff_triton.kernels.common.compilation import compile_ahead

_LOG = logging.getLogger("mlff_triton")

Result = TypeVar("Result")


class StepGraph(Generic[Result]):
    """The launches of a function as a CUDA graph, or one by one.

    A graph needs memory of its own. If there is too little, the function is launched at every call
    until its buffers change.

    Parameters
    ----------
    pool : GraphPool or None
        Memory of the graph; None to launch at every call.
    keeps_state : bool
        True if PyTorch's operators in the function keep something from call to call, so that it
        cannot be called to compile its kernels: see `compile_ahead`.
    """

    def __init__(self, pool: GraphPool | None, *, keeps_state: bool = False) -> None:
        self._pool = pool
        self._keeps_state = keeps_state
        self._layout: Hashable = None
        self._layout_without_graph: Hashable = None
        self._captured: tuple[torch.cuda.CUDAGraph, Result] | None = None

    def run(
        self,
        launch: Callable[[], Result],
        layout: Hashable,
        rehearse: Callable[[], object] | None = None,
    ) -> Result:
        """Queue the launches of a function.

        Parameters
        ----------
        launch : callable
            Launches kernels on the current stream, and returns tensors. It must be the same
            function at every call. It is not kept, so that its owner is freed in time.
        layout : hashable
            Identifies the addresses of the buffers that it uses. The graph is captured again when
            the layout differs from that of the last call.
        rehearse : callable, optional
            Does the same without effects on other processes. It runs before a capture.

        Returns
        -------
        Result
            Tensors that the next call overwrites, if captured.
        """
        if self._pool is None or layout == self._layout_without_graph:
            return launch()
        if layout != self._layout:
            self.discard()  # before a new capture takes memory from the same pool
        if self._captured is None:
            if not self._keeps_state:
                compile_ahead(rehearse or launch)
            try:
                self._captured = record(launch, self._pool, rehearse)
            except torch.OutOfMemoryError:
                if self._keeps_state:
                    raise
                return self._launch_without_graph(launch, layout)
            self._layout = layout
        graph, result = self._captured
        graph.replay()
        return result

    def _launch_without_graph(self, launch: Callable[[], Result], layout: Hashable) -> Result:
        """Launch a function if there is too little memory for its graph."""
        torch.cuda.empty_cache()
        result = launch()
        self._layout_without_graph = layout
        _LOG.warning("the GPU has no memory for a CUDA graph: its kernels are launched one by one")
        return result

    def discard(self) -> None:
        """Free the graph; the next call captures it again."""
        self._captured = None
