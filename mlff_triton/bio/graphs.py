"""CUDA graphs of functions of tensors, one for each shape of their inputs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from threading import RLock
from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton.runtime import driver

from mlff_triton._common.cuda_graphs import record

KEPT = 16  # shapes; the one used longest ago is forgotten first

Inputs = Sequence[Tensor | None]
Outputs = tuple[Tensor, ...]


class _Recorded(NamedTuple):
    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    outputs: Outputs


class Graphs:
    """Runs a function as CUDA graphs, recorded when a shape comes a second time.

    Shapes that come once are not worth the recording, and a stream of ever new ones costs nothing.
    Calls of several threads or streams wait for each other.

    Parameters
    ----------
    function : callable
        Of a sequence of tensors, some of them perhaps None, and of one thing that can be hashed;
        returns a tuple of tensors. Must not wait for the GPU.
    """

    def __init__(self, function: Callable[[Inputs, Any], Outputs]) -> None:
        self._function = function
        self._recorded: OrderedDict[tuple[object, ...], _Recorded | None] = OrderedDict()
        self._pool: Any = None
        self._stream: torch.cuda.Stream | None = None  # of the last replay
        self._lock = RLock()

    def __call__(self, inputs: Inputs, option: Any = None) -> Outputs:
        """What the function returns, in tensors that the caller may keep."""
        with self._lock:
            key = _key(inputs, option)
            if key not in self._recorded:
                self._recorded[key] = None
                while len(self._recorded) > KEPT:
                    self._recorded.popitem(last=False)
                return self._function(inputs, option)
            if self._recorded[key] is None:
                self._recorded[key] = self._record(inputs, option)
            outputs = self.replay(inputs, option)
            assert outputs is not None
            return outputs

    def replay(self, inputs: Inputs, option: Any = None) -> Outputs | None:
        """The same if there is a graph for it already, otherwise nothing."""
        with self._lock:
            key = _key(inputs, option)
            recorded = self._recorded.get(key)
            if recorded is None:
                return None
            self._recorded.move_to_end(key)
            self._wait(recorded.inputs[0].device)
            torch._foreach_copy_(recorded.inputs, _given(inputs), non_blocking=True)
            recorded.graph.replay()
            return tuple(output.clone() for output in recorded.outputs)

    def _wait(self, device: torch.device) -> None:
        """Let the current stream wait for the last one; asked for in the way that takes least."""
        last = self._stream
        if last is None or driver.active.get_current_stream(device.index) != last.cuda_stream:
            self._stream = torch.cuda.current_stream(device)
            if last is not None:
                self._stream.wait_stream(last)

    @torch.inference_mode(False)
    def _record(self, inputs: Inputs, option: Any) -> _Recorded:
        """Capture; within, so that the graph's own tensors can be written to in any mode."""
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        kept = [None if x is None else x.clone() for x in inputs]
        with torch.no_grad(), torch.cuda.device_of(_given(inputs)[0]):
            graph, outputs = record(lambda: self._function(kept, option), self._pool)
        return _Recorded(graph, _given(kept), outputs)


def _given(inputs: Inputs) -> list[Tensor]:
    return [x for x in inputs if x is not None]


def _key(inputs: Inputs, option: Any) -> tuple[object, ...]:
    return option, *(None if x is None else (x.shape, x.dtype) for x in inputs)
