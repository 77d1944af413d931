"""Bench ``models``: models of genomes and proteins, accelerated, against those as shipped.

Each workload is one call of a model in the sizes and, where they are public, with the weights that
its authors publish. Its truth is the model as shipped, in float32. Whole predictions of structures
take too long in float32, so after the time of one is measured, another one of the same protein in
fewer steps is compared, from the same random numbers.
"""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import nn

from benchmarks.bio.boltz import WORKLOADS as BOLTZ
from benchmarks.bio.dualbind import WORKLOADS as DUALBIND
from benchmarks.bio.genomes import WORKLOADS as GENOMES
from benchmarks.bio.openfold3 import WORKLOADS as OPENFOLD3
from benchmarks.bio.protein_mpnn import WORKLOADS as PROTEIN_MPNN
from benchmarks.bio.protenix import WORKLOADS as PROTENIX
from benchmarks.engine.peers import graphed
from benchmarks.lab.guards import at_most, clean_up, quiet
from benchmarks.lab.lab import Lab
from benchmarks.lab.schema import make_row
from mlff_triton._common.timing import Timing, measure, peak_mib, reset_peak, synchronize

BENCH = "models"
SPREADS = 2**2
"""Largest error of a prediction, relative to that of the model as shipped in half precision."""
Step = Callable[[], Any]


class Workload(Protocol):
    """A call of a model, and how its results are compared.

    Attributes
    ----------
    name : str
        Name in the results.
    package : str
        Package that has the model.
    size : int
        Residues or bases of all inputs.
    limit : float
        Largest error; see also `limit_of`.
    runs_in_graphs : bool
        True if a call never waits for the GPU, so that peers can capture it.
    compiles : bool
        True if peers can compile it.
    has_half : bool
        True if the model as shipped runs in half precision.
    has_kernels : bool
        True if the model as shipped can call kernels, for which there is a method
        ``enable_kernels``.
    is_checked : bool
        True if results are compared with those of the model as shipped, in float32.
    short : Workload or None
        Short call that warms up a long one, which is timed once then.
    other : Workload or None
        Short call of another size.
    cheaper : Workload or None
        Call of the same size whose results are compared, if it is not this one.
    """

    name: str
    package: str
    size: int
    limit: float
    runs_in_graphs: bool
    compiles: bool
    has_half: bool
    has_kernels: bool
    is_checked: bool
    short: Workload | None
    other: Workload | None
    cheaper: Workload | None

    def build(self, device: torch.device) -> nn.Module:
        """Build the model in float32."""

    def half(self, model: nn.Module) -> nn.Module:
        """Let the model compute in half precision."""

    def inputs(self, device: torch.device) -> dict[str, Any]:
        """Make the arguments of a call, always the same."""

    def call(self, model: nn.Module, inputs: dict[str, Any]) -> Any:
        """Call the model."""

    def error(self, actual: Any, expected: Any) -> float:
        """Compare the results of two calls."""


class Implementation(NamedTuple):
    """Way to run a workload.

    Attributes
    ----------
    prepare : callable
        Takes a workload, its model and its inputs, and returns the function to time.
    captures : bool
        True if it needs a workload that never waits for a GPU, and a GPU.
    compiles : bool
        True if it compiles the model, for which it needs a GPU.
    is_half : bool
        True for the model as shipped in half precision.
    precision : str or None
        Precision of the accelerated model.
    kernels : bool
        True if it needs a model that calls kernels of another package.
    is_new : bool
        True if the calls before were of another size than the one that is timed.
    """

    prepare: Callable[[Workload, nn.Module, dict[str, Any]], Step]
    captures: bool = False
    compiles: bool = False
    is_half: bool = False
    precision: str | None = None
    kernels: bool = False
    is_new: bool = False

    def runs(self, workload: Workload, device: torch.device) -> bool:
        """Return True if a workload can be run in this way."""
        has_gpu = device.type == "cuda"
        can_capture = not self.captures or (workload.runs_in_graphs and has_gpu)
        can_compile = not self.compiles or (workload.compiles and has_gpu)
        in_half = self.is_half or self.precision in ("fp16", "bf16")
        is_possible = can_capture and can_compile and (workload.has_half or not in_half)
        is_known = workload.other is not None or not self.is_new
        return is_possible and is_known and (workload.has_kernels or not self.kernels)


def eager(workload: Workload, model: nn.Module, inputs: dict[str, Any]) -> Step:
    """Call the model as it is."""
    return lambda: workload.call(model, inputs)


def accelerated(precision: str) -> Implementation:
    """Accelerate the model; raise if it falls back on the forward that it is compared with."""

    def prepare(workload: Workload, model: nn.Module, inputs: dict[str, Any]) -> Step:
        return eager(workload, accelerate_once(model, precision), inputs)

    return Implementation(prepare, precision=precision)


def autocast(workload: Workload, model: nn.Module, inputs: dict[str, Any]) -> Step:
    """Accelerate the model in the precision that autocast gives its parts."""
    return eager(workload, workload.half(accelerate_once(model)), inputs)


def accelerate_once(model: nn.Module, precision: str | None = None) -> nn.Module:
    """Accelerate a model, unless it is for a short call already, so that weights are read once."""
    from mlff_triton.bio import FallbackWarning, accelerate, report

    warnings.simplefilter("error", FallbackWarning)
    return model if report(model) else accelerate(model, precision=precision)


def with_kernels(workload: Workload, model: nn.Module, inputs: dict[str, Any]) -> Step:
    """Let the model call the kernels that its package supports."""
    workload.enable_kernels(model)  # type: ignore[attr-defined]
    return eager(workload, model, inputs)


def captured(workload: Workload, model: nn.Module, inputs: dict[str, Any]) -> Step:
    """Capture the call in a CUDA graph."""
    return graphed(Call(workload, model), {"inputs": inputs})


def compiled(workload: Workload, model: nn.Module, inputs: dict[str, Any]) -> Step:
    """Compile the model with the best mode of ``torch.compile``."""
    return eager(workload, torch.compile(model, mode="max-autotune"), inputs)


class Call(nn.Module):
    """A workload's call as a module."""

    def __init__(self, workload: Workload, model: nn.Module) -> None:
        super().__init__()
        self.workload, self.model = workload, model

    def forward(self, inputs: dict[str, Any]) -> Any:
        """Call the model."""
        return self.workload.call(self.model, inputs)


IMPLEMENTATIONS = {
    "accelerated-fp32": accelerated("fp32"),
    "accelerated-fp16": accelerated("fp16"),
    "accelerated-bf16": accelerated("bf16"),
    "accelerated-autocast": Implementation(autocast, precision="bf16"),
    "new-size": Implementation(autocast, precision="bf16", is_new=True),
    "reference": Implementation(eager),
    "reference-graph": Implementation(captured, captures=True),
    "half": Implementation(eager, is_half=True),
    "half-kernels": Implementation(with_kernels, is_half=True, kernels=True),
    "half-graph": Implementation(captured, captures=True, is_half=True),
    "compile": Implementation(compiled, compiles=True),
    "compile-half": Implementation(compiled, compiles=True, is_half=True),
}
CASES: dict[str, Workload] = {
    one.name: one for one in (*PROTEIN_MPNN, *DUALBIND, *GENOMES, *BOLTZ, *OPENFOLD3, *PROTENIX)
}


def run_models(lab: Lab, names: Sequence[str], implementations: Sequence[str]) -> None:
    """Measure the named workloads with each of the named implementations."""
    for workload in map(CASES.__getitem__, names):
        if find_spec(workload.package) is None:
            lab.skip(f"{BENCH} {workload.name}", f"{workload.package} is not installed")
            continue
        for implementation in implementations:
            if lab.budget.left <= 0:
                print(f"{BENCH} {workload.name}: skipped, the time is up", file=sys.stderr)
                return
            if IMPLEMENTATIONS[implementation].runs(workload, lab.device):
                run_one(lab, workload, implementation)


def limit_of(workload: Workload, implementation: Implementation, device: torch.device) -> float:
    """Return the largest error that a row may have.

    Half precision as shipped loses what it loses. Predictions of structures add up the rounding of
    all steps, so their limit follows from two runs of the model as shipped, in float32 and in half
    precision: results must not differ more than twice as much from those in float32. Their errors
    are squares of relative ones, so the limit is four times the error.
    """
    if implementation.is_half:
        return math.inf
    if workload.cheaper is None or not workload.is_checked:
        return workload.limit
    between = spread(workload.cheaper, device)
    return workload.limit if math.isnan(between) else min(workload.limit, SPREADS * between)


def run_one(lab: Lab, workload: Workload, name: str) -> None:
    """Report a row, without a time if the error is above the limit."""
    timing = error = shown = None
    implementation = IMPLEMENTATIONS[name]
    clean_up(lab.device)
    try:
        with at_most(min(lab.budget.each, lab.budget.left)), quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            timing, error = _measure(lab, workload, implementation)
            if error is None or error <= limit_of(workload, implementation, lab.device):
                shown = timing
    except Exception as problem:  # noqa: BLE001 - the other implementations can still run
        lab.complain(f"{BENCH} {workload.name} {name}", problem)
    size = workload.size, 0
    lab.report(make_row(BENCH, workload.name, name, size, lab.where, shown, error))


def _measure(
    lab: Lab, workload: Workload, implementation: Implementation
) -> tuple[Timing, float | None]:
    """Compare, time, and compare again, as a replayed graph may be right only once.

    The error is None if the model as shipped needs more memory than there is, or too much time.
    """
    compared = workload.cheaper or workload
    expected = truth(compared, lab.device) if workload.is_checked else None
    clean_up(lab.device)  # so that this memory does not count as the implementation's
    with torch.inference_mode():
        model, inputs = workload.build(lab.device), workload.inputs(lab.device)
        if implementation.is_half:
            model = workload.half(model)
        warm_up = workload.other if implementation.is_new else workload.short
        if warm_up is not None:
            implementation.prepare(warm_up, model, warm_up.inputs(lab.device))()
            step = implementation.prepare(workload, model, inputs)
            timing, found = _time_once(step, lab.device)
            if expected is None:
                return timing, None
            if compared != workload:
                found = implementation.prepare(compared, model, compared.inputs(lab.device))()
            return timing, compared.error(found, expected)
        step = implementation.prepare(workload, model, inputs)
        before = None if expected is None else workload.error(step(), expected)
        clean_up(lab.device)
        reset_peak(lab.device)
        timing = measure(step, lab.device, seconds=lab.budget.sampling)
        if expected is None:
            return timing, None
        after = workload.error(step(), expected)
    return timing, float(np.max([before, after]))  # NaN counts as the largest


def _time_once(step: Step, device: torch.device) -> tuple[Timing, Any]:
    """Time one call, and return its results."""
    clean_up(device)
    reset_peak(device)
    synchronize(device)
    start = time.perf_counter()
    found = step()
    synchronize(device)
    elapsed = (time.perf_counter() - start) * 1e3
    return Timing(elapsed, elapsed, elapsed, peak_mib(device)), found


@lru_cache(maxsize=1)
def truth(workload: Workload, device: torch.device) -> Any:
    """Return the results of the model as shipped, in float32 without TF32, on the CPU.

    They are None if the memory does not suffice.
    """
    try:
        with torch.inference_mode(), torch.backends.cudnn.flags(allow_tf32=False):
            return _on_cpu(workload.call(workload.build(device), workload.inputs(device)))
    except torch.OutOfMemoryError:
        return None


@lru_cache(maxsize=1)
def spread(workload: Workload, device: torch.device) -> float:
    """Return the error of the model as shipped in half precision.

    It is not a number if the memory does not suffice.
    """
    expected = truth(workload, device)
    if expected is None:
        return math.nan
    with torch.inference_mode():
        found = workload.call(workload.half(workload.build(device)), workload.inputs(device))
    return workload.error(found, expected)


def _on_cpu(results: Any) -> Any:
    if isinstance(results, dict):
        return {name: _on_cpu(value) for name, value in results.items()}
    return results.cpu()
