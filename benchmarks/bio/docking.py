"""Bench ``docking``: DiffDock's score models, and the screening of ligands.

Models have the sizes of the published ones (48 scalar and 10 vector channels, 6 layers) and random
weights. They are the structural doubles of the tests, on top of e3nn, whose layers compute as the
package's do. Receptors have 300 residues with 24 neighbors each, ligands 30 atoms and 7 rotatable
bonds. Names of scores end in the time of the diffusion: the larger it is, the more residues are
near a ligand.

- ``score-*``: a call for 40 samples. The truth is the model in float64.
- ``layer-*``: one convolution over the residues of 40 samples, as compiling whole models takes
  more than half an hour.
- ``screen-*``: ligands with 10 samples each in 20 steps, in ms per ligand. The model as shipped
  takes one ligand after another, and fewer ligands. Its steps are ours, which favors it. The truth
  are the poses of the first ligands by the model in float64, with the same noise.

An error is the largest one of an output over its largest true value.
"""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.bio import docking_complexes as inputs
from benchmarks.lab.guards import at_most, clean_up, quiet
from benchmarks.lab.lab import Lab
from benchmarks.lab.schema import make_row
from mlff_triton._common.timing import Timing, measure, peak_mib, reset_peak, synchronize

BENCH = "docking"
OURS, REFERENCE, COMPILED = "accelerated", "reference", "compile"
IMPLEMENTATIONS = (OURS, REFERENCE, COMPILED)
LIMIT = 1e-4
"""Largest error of ours."""
SAMPLES, SHARED = 40, 8
"""Samples of a call, and of a part of the truth."""
STEPS, POSES, FEW = 20, 10, 2
"""Steps of the diffusion, samples of a ligand, and ligands of the truth and of a peer."""


@dataclass(frozen=True)
class Score:
    """A call of a score model for samples of one complex at a time of the diffusion."""

    kind: str
    time: float
    compiles = False

    def run(self, lab: Lab, name: str) -> tuple[Timing, float]:
        """Return the time of a call, and its error."""
        model = build(self.kind, lab.device)
        data = inputs.samples(SAMPLES, self.time, lab.device)
        with accelerated(model, name):
            error = largest_error(model(data)[:3], truth(self.kind, self.time, lab.device))
            clean_up(lab.device)
            reset_peak(lab.device)
            timing = measure(lambda: model(data), lab.device, seconds=lab.budget.sampling)
        return timing, error


@dataclass(frozen=True)
class Layer:
    """A convolution over the residues of all samples, of a layer in the middle of the model."""

    compiles = True

    def run(self, lab: Lab, name: str) -> tuple[Timing, float]:
        """Return the time of a call, and its error."""
        layers = build("CGOldModel", lab.device).rec_conv_layers
        layer = layers[len(layers) // 2]
        given = inputs.layer_inputs(layer, SAMPLES, lab.device)
        expected = [layer(*given)]
        call = torch.compile(layer) if name == COMPILED else layer
        with accelerated(layer, name):
            error = largest_error([call(*given)], expected)
            clean_up(lab.device)
            reset_peak(lab.device)
            timing = measure(lambda: call(*given), lab.device, seconds=lab.budget.sampling)
        return timing, error


@dataclass(frozen=True)
class Screen:
    """Ligands against one receptor, in ms per ligand."""

    kind: str
    ligands: int
    compiles = False

    def run(self, lab: Lab, name: str) -> tuple[Timing, float]:
        """Return the time per ligand of one screening, and the error of its first ligands."""
        from mlff_triton.bio import dock

        model = build(self.kind, lab.device)
        complexes = inputs.ligands(self.ligands if name == OURS else FEW)
        poses = POSES * len(complexes) if name == OURS else POSES
        first = STEPS if name == OURS else 1  # times differ in their kernels
        with accelerated(model, name):
            dock(model, complexes, inputs.diffusion(first), samples=POSES, poses=poses)  # compiles
            clean_up(lab.device)
            reset_peak(lab.device)
            synchronize(lab.device)
            start = time.perf_counter()
            found = dock(model, complexes, inputs.diffusion(STEPS), samples=POSES, poses=poses)
            elapsed = (time.perf_counter() - start) * 1e3 / len(complexes)
            peak = peak_mib(lab.device)
        error = largest_error(positions(found[:FEW]), true_poses(self.kind, lab.device))
        return Timing(elapsed, elapsed, elapsed, peak), error


CASES: dict[str, Score | Layer | Screen] = {
    "score-v1-0.1": Score("CGOldModel", 0.1),
    "score-v1-0.7": Score("CGOldModel", 0.7),
    "score-L-0.1": Score("CGModel", 0.1),
    "layer-v1": Layer(),
    "screen-v1-64": Screen("CGOldModel", 64),
    "screen-L-64": Screen("CGModel", 64),
}


def run_docking(lab: Lab, names: Sequence[str], implementations: Sequence[str]) -> None:
    """Measure the named cases with each of the named implementations."""
    missing = [each for each in ("e3nn", "torch_geometric") if find_spec(each) is None]
    if missing and names:
        lab.skip(BENCH, f"{missing[0]} is not installed")
        return
    for name in names:
        for implementation in implementations:
            if implementation == COMPILED and not CASES[name].compiles:
                continue
            if lab.budget.left <= 0:
                print(f"{BENCH} {name}: skipped, the time is up", file=sys.stderr)
                return
            run_one(lab, name, implementation)


def run_one(lab: Lab, name: str, implementation: str) -> None:
    """Report a row, without a time if the error is above the limit."""
    timing = error = None
    clean_up(lab.device)
    try:
        with at_most(lab.budget.left_for_one), quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with torch.inference_mode():
                timing, error = CASES[name].run(lab, implementation)
    except Exception as problem:  # noqa: BLE001 - the other implementations can still run
        lab.complain(f"{BENCH} {name} {implementation}", problem)
    limit = LIMIT if implementation == OURS else math.inf
    shown = None if error is None or not error <= limit else timing
    size = inputs.ATOMS, inputs.RESIDUES * inputs.NEIGHBORS
    lab.report(make_row(BENCH, name, implementation, size, lab.where, shown, error))


def build(kind: str, device: torch.device, dtype: torch.dtype = torch.float32) -> Any:
    """Return a score model with random weights, the same in all dtypes."""
    from tests.bio.models.diffdock import support

    inputs.set_neighbors(support.models)
    model = support.make_model(kind, dict(inputs.SIZES))
    inputs.calm(model)
    if dtype != torch.float32:
        with support.default_dtype(dtype):
            model = support.with_weights_of(model, support.make_model(kind, dict(inputs.SIZES)))
    model.device = device
    return model.to(device)


@contextmanager
def accelerated(model: nn.Module, name: str) -> Iterator[None]:
    """Accelerate a model if it is ours."""
    from mlff_triton import bio

    if name != OURS:
        yield
        return
    backend = "torch" if next(model.parameters()).device.type == "cpu" else "triton"
    warnings.simplefilter("error", bio.FallbackWarning)
    with bio.accelerated(model, backend=backend):
        yield


@lru_cache(maxsize=1)
def truth(kind: str, at: float, device: torch.device) -> list[Tensor]:
    """Return the scores of a model in float64, from some samples at a time."""
    from tests.bio.models.diffdock import support

    model = build(kind, device, torch.float64)
    batches = list(inputs.parts_of_samples(SAMPLES, SHARED, at, device, torch.float64))
    with support.default_dtype(torch.float64):
        parts = [model(data)[:3] for data in batches]
    return [torch.cat(each).cpu() for each in zip(*parts, strict=True)]


@lru_cache(maxsize=1)
def true_poses(kind: str, device: torch.device) -> list[Tensor]:
    """Return the poses of the first ligands by a model in float64."""
    from mlff_triton.bio import dock
    from tests.bio.models.diffdock import support

    model, complexes = build(kind, device, torch.float64), inputs.ligands(FEW)
    with support.default_dtype(torch.float64):
        found = dock(model, complexes, inputs.diffusion(STEPS), samples=POSES, poses=POSES)
    return positions(found)


def positions(found: Sequence[Any]) -> list[Tensor]:
    """Return the positions [samples, N, 3] of the poses of each ligand."""
    return [torch.from_numpy(each.positions) for each in found]


def largest_error(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Return the largest error of an output over its largest true value; NaN counts as infinite."""
    errors = [
        float((x.cpu().double() - y.cpu().double()).abs().max() / y.abs().max().double())
        for x, y in zip(found, expected, strict=True)
    ]
    return math.inf if any(map(math.isnan, errors)) else max(errors)
