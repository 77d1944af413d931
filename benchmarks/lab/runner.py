"""Runs cases: gate, time, gate again, row."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import torch

from benchmarks.engine.cases import Case, standing_in
from benchmarks.engine.gate import GateError, Truth, check_plausible
from benchmarks.engine.implementations import Implementation, Prepared
from benchmarks.lab.guards import at_most, clean_up, quiet
from benchmarks.lab.schema import AnyRow, Results, make_row
from benchmarks.systems.models import model
from benchmarks.systems.systems import System
from mlff_triton._common.timing import Environment, Timing, measure, synchronize
from mlff_triton.errors import MlffTritonError


@dataclass
class Budget:
    """How long a run may take.

    Attributes
    ----------
    total : float
        Seconds after which nothing new is started.
    each : float
        Seconds for one implementation on one case, compilation included.
    sampling : float
        Seconds to repeat a step for, about.
    """

    total: float = 3600.0
    each: float = 240.0
    sampling: float = 1.0
    started: float = field(default_factory=time.monotonic)

    @property
    def left(self) -> float:
        """Seconds left."""
        return self.total - (time.monotonic() - self.started)


@dataclass
class Lab:
    """Where measurements are made and where they go.

    Attributes
    ----------
    device : torch.device
        What is measured.
    where : Environment
        Its description.
    results : Results
        The CSV files.
    budget : Budget
        How long it may take.
    errors : dict
        Of each case and implementation that was right in this run.
    """

    device: torch.device
    where: Environment
    results: Results
    budget: Budget = field(default_factory=Budget)
    errors: dict[tuple[Case, str], float] = field(default_factory=dict)

    def report(self, row: AnyRow) -> None:
        """Write a row and show it."""
        self.results.add([row])
        print(row.summary, flush=True)

    def complain(self, what: str, error: BaseException) -> None:
        """Say on stderr why there is no time; end the run if the device is lost."""
        text = " ".join(str(error).split())[:500]
        print(f"{what}: {type(error).__name__}: {text}", file=sys.stderr, flush=True)
        try:
            synchronize(self.device)
        except RuntimeError as lost:
            raise SystemExit(f"{what} has broken the device; start again without it") from lost


def run_case(lab: Lab, case: Case, implementations: Sequence[Implementation]) -> None:
    """Measure a case with each implementation that is made for it."""
    try:
        network = model(case.model)
    except MlffTritonError as error:
        print(f"{case.bench} {case.name}: skipped, {error}", file=sys.stderr, flush=True)
        return
    system = case.build()
    size = system.n_atoms, system.count_edges(network.cutoff)
    for implementation in implementations:
        reason = implementation.refusal(network, system.n_atoms, lab.device)
        if reason is None and lab.budget.left <= 0:
            reason = "the time is up"
        if reason is not None:
            what = f"{case.bench} {case.name} {implementation.name}"
            print(f"{what}: skipped, {reason}", file=sys.stderr, flush=True)
            continue
        timing, error = run_one(lab, case, system, implementation)
        name = implementation.name
        lab.report(make_row(case.bench, case.name, name, size, lab.where, timing, error))


def run_one(
    lab: Lab, case: Case, system: System, implementation: Implementation
) -> tuple[Timing | None, float | None]:
    """Time of a right implementation (None of a wrong one), and its error."""
    try:
        checked = standing_in(case)
        if checked is case or (checked, implementation.name) not in lab.errors:
            clean_up(lab.device)
            truth(checked, lab.device)  # its time and memory are not the implementation's
        with at_most(min(lab.budget.each, lab.budget.left)), quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if checked is case:
                return _examine(lab, case, system, implementation)
            return _examine_large(lab, case, checked, system, implementation)
    except Exception as error:  # noqa: BLE001 - whatever it is, the others can still run
        lab.complain(f"{case.bench} {case.name} {implementation.name}", error)
        return None, error.error if isinstance(error, GateError) else None


@lru_cache(maxsize=2)
def truth(case: Case, device: torch.device) -> Truth:
    """The truth of a case."""
    return Truth.of(model(case.model), case.build(), device)


def _examine(
    lab: Lab, case: Case, system: System, implementation: Implementation
) -> tuple[Timing, float]:
    """Gate, time, and gate again: a replayed graph may be right only once."""
    prepared = _prepare(lab, case, system, implementation)
    error = _gate(lab, case, implementation, prepared)
    timing = _time(lab, implementation, prepared)
    error = max(error, _gate(lab, case, implementation, prepared))
    lab.errors[case, implementation.name] = error
    return timing, error


def _examine_large(
    lab: Lab, case: Case, checked: Case, system: System, implementation: Implementation
) -> tuple[Timing, float]:
    """Gate on the smaller case, unless it has been measured in this run, and time the large one."""
    key = checked, implementation.name
    if key not in lab.errors:
        small = _prepare(lab, checked, checked.build(), implementation)
        lab.errors[key] = _gate(lab, checked, implementation, small)
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


def _gate(lab: Lab, case: Case, implementation: Implementation, prepared: Prepared) -> float:
    if not implementation.gated:
        return 0.0
    outcome = prepared.read(prepared.step())
    return truth(case, lab.device).check(outcome, implementation.tolerance, stress=case.stress)
