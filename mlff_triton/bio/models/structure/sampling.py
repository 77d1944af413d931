"""Steps of sampling runs, in CUDA graphs that later runs of the same sizes replay."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from mlff_triton.bio.core.fast_forward import Options, Reading, Weights
from mlff_triton.bio.core.graph_cache import GraphCache, Inputs, Outputs
from mlff_triton.bio.models.structure.autocast import AutocastForward
from mlff_triton.bio.models.structure.packed import Packed, unpacked
from mlff_triton.bio.models.structure.remembered import Remembered, tensors_in
from mlff_triton.kernels.common.hardware import total_memory

Step: TypeAlias = Callable[[Any, Inputs, Any], Outputs]
"""Function of what all steps of a run have in common, of a step's inputs, and of an option."""

_PART = 128  # of the GPU's memory that graphs may keep between runs


class Run:
    """Steps of one run, which have nested tuples of tensors in common.

    Attributes
    ----------
    reading : Reading
        Weights that these tensors were computed with.
    fixed : tuple
        The tensors.
    """

    def __init__(
        self,
        reading: Reading[Any],
        step: Step,
        fixed: Any,
        graphs: GraphCache | None = None,
        constants: Sequence[Tensor] = (),
    ) -> None:
        self.reading, self.fixed = reading, fixed
        self._step, self._graphs, self._constants = step, graphs, constants

    @property
    def captures(self) -> bool:
        """True if steps run as CUDA graphs."""
        return self._graphs is not None

    def __call__(self, inputs: Sequence[Tensor], option: Any = None) -> Outputs:
        """Compute a step."""
        if self._graphs is None:
            return self._step(self.fixed, inputs, option)
        return self._graphs(inputs, option, self._constants)

    def replay(self, inputs: Sequence[Tensor], option: Any = None) -> Outputs | None:
        """Replay the graph of a step, if there is one for these inputs."""
        if self._graphs is None or not all(x.is_cuda for x in inputs):
            return None
        return self._graphs.replay(inputs, option, self._constants)


class _Steps:
    """Function of a step, and the graphs of the last run if they are worth their memory.

    A run of the same sizes replays them, with copies of its own tensors. Graphs of runs whose
    tensors take more of the GPU's memory are freed with these instead.
    """

    def __init__(self, reading: Reading[Any], step: Step, *, captures: bool) -> None:
        self.reading = reading
        self._step, self._captures = step, captures
        self._graphs: GraphCache | None = None
        self._places: Any = None  # of the tensors that these graphs read

    def begin(self, fixed: tuple[Any, ...]) -> Run:
        """Begin a run."""
        if not self._captures:
            return Run(self.reading, self._step, fixed)
        if not _is_small(fixed):
            self._graphs = self._places = None
            own = GraphCache(partial(self._step, fixed), at_once=True)
            return Run(self.reading, self._step, fixed, own)
        packed = Packed.of(fixed)
        if self._graphs is None or self._places != packed.places:
            step = partial(_packed_step, self._step, packed.places, len(packed.tensors))
            self._graphs, self._places = GraphCache(step, at_once=True), packed.places
        return Run(self.reading, self._step, packed.weights, self._graphs, packed.tensors)


class SamplingForward(AutocastForward[Weights]):
    """Network that a sampler calls at every step.

    What the steps of a run have in common is computed in the first one, and forgotten when one of
    the tensors that it was made from is deleted. On a GPU, steps replay one CUDA graph, which is
    kept for later runs of the same sizes if it takes little memory. Tensors that were made in
    inference mode must not be changed in place during a run.
    """

    def __init__(self, module: nn.Module, options: Options, model: nn.Module | None = None) -> None:
        super().__init__(module, options, model)
        self._last: Remembered[Run] = Remembered()
        self._steps: _Steps | None = None

    @property
    @abstractmethod
    def step(self) -> Step:
        """Function that computes a step with the present weights."""

    @property
    def rows(self) -> torch.dtype:
        """Dtype of tokens and atoms, which kernels update in float32."""
        return torch.float32 if self.backend == "triton" else self.dtype

    def run_with(self, tensors: Sequence[Tensor]) -> Run | None:
        """Return the run with these tensors and the present weights, if there is one."""
        run = self._last.get(tensors)
        return run if run is not None and run.reading is self._reading else None

    def begin_run(self, tensors: Sequence[Tensor], prepare: Callable[[], tuple[Any, ...]]) -> Run:
        """Begin a run with what its steps have in common, which is made from tensors."""
        assert self._reading is not None
        self._last.forget()  # frees the memory of the last run first
        fixed = prepare()
        if self._steps is None or self._steps.reading is not self._reading:
            captures = self.options.captures(self.backend, self.module)
            self._steps = _Steps(self._reading, self.step, captures=captures)
        run = self._steps.begin(fixed)
        self._last.set(tensors, run)
        return run

    def refresh(self) -> None:
        """Forget the weights and what was computed from them."""
        super().refresh()
        self._last.forget()
        self._steps = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_steps": None}


def _packed_step(step: Step, places: Any, count: int, inputs: Inputs, option: Any) -> Outputs:
    """Compute a step from inputs that end with the tensors of `Packed`."""
    tensors = [x for x in inputs[-count:] if x is not None]
    return step(unpacked(tensors, places), inputs[:-count], option)


def _is_small(fixed: tuple[Any, ...]) -> bool:
    """Return True if tensors may be kept between runs."""
    tensors = list(tensors_in(fixed))
    memory = total_memory(tensors[0].device)
    return sum(x.nbytes for x in tensors) * _PART <= (memory or 0)
