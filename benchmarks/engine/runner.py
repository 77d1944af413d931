"""Measure whole steps: check, time, check again, report."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import lru_cache

import torch

from benchmarks.engine.cases import Case
from benchmarks.engine.gate import GateError, Truth, check_plausible
from benchmarks.engine.implementations import Implementation, Prepared
from benchmarks.lab.guards import at_most, clean_up, quiet
from benchmarks.lab.lab import Lab
from benchmarks.lab.schema import make_row
from benchmarks.systems.models import model
from benchmarks.systems.systems import System
from mlff_triton._common.timing import Timing, measure
from mlff_triton.errors import MlffTritonError


def run_case(lab: Lab, case: Case, implementations: Sequence[Implementation]) -> None:
    """Measure a case with each implementation that supports it."""
    try:
        network = model(case.model)
    except MlffTritonError as error:
        lab.skip(f"{case.bench} {case.name}", str(error))
        return
    system = case.build()
    size = system.n_atoms, system.count_edges(network.cutoff)
    for implementation in implementations:
        name = implementation.name
        reason = implementation.refusal(network, system.n_atoms, lab.device)
        if reason is None and lab.budget.left <= 0:
            reason = "the time is up"
        if reason is not None:
            lab.skip(f"{case.bench} {case.name} {name}", reason)
            continue
        timing, error = run_one(lab, case, system, implementation)
        lab.report(make_row(case.bench, case.name, name, size, lab.where, timing, error))


def run_one(
    lab: Lab, case: Case, system: System, implementation: Implementation
) -> tuple[Timing | None, float | None]:
    """Return the time of a step, None if its results are wrong, and the error of the results."""
    try:
        if case.stand_in is None or (case.stand_in, implementation.name) not in lab.errors:
            clean_up(lab.device)
            truth(case.checked, lab.device)  # outside the implementation's time and memory
        with at_most(lab.budget.left_for_one), quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if case.stand_in is None:
                return _examine(lab, case, system, implementation)
            return _examine_large(lab, case, case.stand_in, system, implementation)
    except Exception as error:  # noqa: BLE001 - a failure must not stop the run
        lab.complain(f"{case.bench} {case.name} {implementation.name}", error)
        return None, error.error if isinstance(error, GateError) else None


@lru_cache(maxsize=2)
def truth(case: Case, device: torch.device) -> Truth:
    """Return the true results of a case."""
    return Truth.of(model(case.model), case.build(), device)


def _examine(
    lab: Lab, case: Case, system: System, implementation: Implementation
) -> tuple[Timing, float]:
    """Check, time, and check again: a replayed graph may be right only once."""
    prepared = _prepare(lab, case, system, implementation)
    error = _check(lab, case, implementation, prepared)
    timing = _time(lab, implementation, prepared)
    error = max(error, _check(lab, case, implementation, prepared))
    lab.errors[case, implementation.name] = error
    return timing, error


def _examine_large(
    lab: Lab, case: Case, small_case: Case, system: System, implementation: Implementation
) -> tuple[Timing, float]:
    """Check the small case, unless it has passed in this run, and time the large one."""
    key = small_case, implementation.name
    if key not in lab.errors:
        small = _prepare(lab, small_case, small_case.build(), implementation)
        lab.errors[key] = _check(lab, small_case, implementation, small)
        del small
    prepared = _prepare(lab, case, system, implementation)
    timing = _time(lab, implementation, prepared)
    if implementation.gated:
        check_plausible(prepared.read(prepared.step()))
    return timing, lab.errors[key]


def _prepare(lab: Lab, case: Case, system: System, implementation: Implementation) -> Prepared:
    clean_up(lab.device)
    return implementation.prepare(model(case.model), system, lab.device)


def _time(lab: Lab, implementation: Implementation, prepared: Prepared) -> Timing:
    seconds, wall = lab.budget.sampling, implementation.wall
    timing = measure(prepared.step, lab.device, seconds=seconds, wall=wall)
    return timing.of_one(prepared.count)


def _check(lab: Lab, case: Case, implementation: Implementation, prepared: Prepared) -> float:
    if not implementation.gated:
        return 0.0
    outcome = prepared.read(prepared.step())
    return truth(case, lab.device).check(outcome, implementation.tolerance, stress=case.stress)
