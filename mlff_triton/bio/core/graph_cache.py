"""Cache of CUDA graphs of a function of tensors, one graph per combination of input shapes."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from threading import RLock
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from mlff_triton._common.cuda_graphs import GraphPool, is_capturing, record

Inputs = Sequence[Tensor | None]
Outputs = tuple[Tensor, ...]
Fill: TypeAlias = Callable[[Inputs], None]
"""Function that writes the inputs of a call to tensors of the same shapes."""


class _CapturedGraph(NamedTuple):
    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor | None]
    constants: list[Tensor]
    held: list[weakref.ref[Tensor]]  # constants that these are copies of
    outputs: Outputs

    def holds(self, constants: Sequence[Tensor]) -> bool:
        """Return True if the last constants were the same tensors."""
        return all(last() is x for last, x in zip(self.held, constants, strict=True))


class GraphCache:
    """Runs a function as CUDA graphs, captured when a combination of shapes occurs again.

    Shapes that occur once are not worth a capture, so a stream of ever new shapes costs nothing.
    If all shapes are known to occur again, they can be captured at once.
    Calls from several threads or streams wait for each other. While the caller captures a graph,
    the function runs without its own graph.

    Parameters
    ----------
    function : callable
        Takes a sequence of tensors, each of which may be None, and one hashable option. Returns a
        tuple of tensors. Must not wait for the GPU. Constants of a call follow its inputs.
    capacity : int
        Number of shapes to remember. The least recently used one is dropped first.
    overwrites : bool
        True if the function overwrites its inputs; it then gets copies of them.
    at_once : bool
        Capture shapes when they occur for the first time.
    """

    def __init__(
        self,
        function: Callable[[Inputs, Any], Outputs],
        capacity: int = 16,
        *,
        overwrites: bool = False,
        at_once: bool = False,
    ) -> None:
        self._function, self._capacity = function, capacity
        self._overwrites, self._at_once = overwrites, at_once
        self._captured: OrderedDict[tuple[object, ...], _CapturedGraph | None] = OrderedDict()
        self._pool: GraphPool | None = None
        self._stream: torch.cuda.Stream | None = None  # of the last replay
        self._lock = RLock()

    def __call__(
        self,
        inputs: Inputs,
        option: Any = None,
        constants: Sequence[Tensor] = (),
        fill: Fill | None = None,
    ) -> Outputs:
        """Return what the function returns, in tensors that the caller may keep.

        Constants are tensors that are never changed in place and have the same shapes in all calls
        with an option. They are copied if they differ from those of the last call. The function
        gets copies of the inputs or, if ``fill`` is given, the tensors that it writes.
        """
        if is_capturing(_present(inputs)[0]):
            return self._run(inputs, option, constants, fill)
        with self._lock:
            key = _key(inputs, option)
            captured, is_new = self._captured.get(key), key not in self._captured
            if captured is None:
                self._captured[key] = None
                while len(self._captured) > self._capacity:
                    self._captured.popitem(last=False)
                if is_new and not self._at_once:
                    return self._run(inputs, option, constants, fill)
                captured = self._captured[key] = self._capture(inputs, option, constants)
            return self._replay(key, captured, inputs, constants, fill)

    def replay(
        self, inputs: Inputs, option: Any = None, constants: Sequence[Tensor] = ()
    ) -> Outputs | None:
        """Return the outputs of an existing graph, or None if there is none for these shapes."""
        if is_capturing(_present(inputs)[0]):
            return None
        with self._lock:
            key = _key(inputs, option)
            captured = self._captured.get(key)
            return None if captured is None else self._replay(key, captured, inputs, constants)

    def _replay(
        self,
        key: tuple[object, ...],
        captured: _CapturedGraph,
        inputs: Inputs,
        constants: Sequence[Tensor],
        fill: Fill | None = None,
    ) -> Outputs:
        self._captured.move_to_end(key)
        self._wait_for_last_replay(_present(inputs)[0].device)
        (fill or partial(copy_all, inputs))(captured.inputs)
        if not captured.holds(constants):
            torch._foreach_copy_(captured.constants, list(constants), non_blocking=True)
            captured.held[:] = map(weakref.ref, constants)
        captured.graph.replay()
        return tuple(output.clone() for output in captured.outputs)

    def _run(
        self, inputs: Inputs, option: Any, constants: Sequence[Tensor], fill: Fill | None
    ) -> Outputs:
        """Run the function without a graph."""
        given = inputs
        if fill is not None:
            given = [None if x is None else torch.empty_like(x) for x in inputs]
            fill(given)
        elif self._overwrites:
            given = _copies(inputs)
        return self._function([*given, *constants], option)

    def _wait_for_last_replay(self, device: torch.device) -> None:
        """Make the current stream wait for the stream of the last replay, if they differ.

        Triton's driver gives the current stream faster than PyTorch does.
        """
        from triton.runtime import driver  # here, as `mlff_triton.bio` is imported without Triton

        last = self._stream
        if last is None or driver.active.get_current_stream(device.index) != last.cuda_stream:
            self._stream = torch.cuda.current_stream(device)
            if last is not None:
                self._stream.wait_stream(last)

    @torch.inference_mode(False)  # so that the graph's own tensors can be written to in any mode
    def _capture(self, inputs: Inputs, option: Any, constants: Sequence[Tensor]) -> _CapturedGraph:
        if self._pool is None:
            self._pool = GraphPool()
        own, kept = _copies(inputs), [x.clone() for x in constants]
        held = list(map(weakref.ref, constants))
        with torch.no_grad(), torch.cuda.device_of(_present(own)[0]):
            run = partial(self._function, [*own, *kept], option)
            graph, outputs = record(run, self._pool)
        return _CapturedGraph(graph, own, kept, held, outputs)


def copy_all(inputs: Inputs, own: Inputs) -> None:
    """Copy all inputs to tensors of their shapes and dtypes.

    PyTorch copies tensors of one dtype in a single launch.
    """
    groups: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for pair in zip(_present(own), _present(inputs), strict=True):
        for group, x in zip(groups.setdefault(pair[1].dtype, ([], [])), pair, strict=True):
            group.append(x)
    for copies, given in groups.values():
        torch._foreach_copy_(copies, given, non_blocking=True)


def _present(inputs: Inputs) -> list[Tensor]:
    return [x for x in inputs if x is not None]


def _copies(inputs: Inputs) -> list[Tensor | None]:
    return [None if x is None else x.clone() for x in inputs]


def _key(inputs: Inputs, option: Any) -> tuple[object, ...]:
    return option, *(None if x is None else (x.shape, x.dtype) for x in inputs)
