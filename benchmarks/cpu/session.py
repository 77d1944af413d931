"""State of a run of bench "cpu": its lab, the methods and threads to measure, and its rows."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Protocol

import numpy as np
import torch

from benchmarks.cpu.cases import Case
from benchmarks.cpu.contest import Contest, Key, hold
from benchmarks.cpu.methods import CPU
from benchmarks.engine.gate import GateError
from benchmarks.lab.guards import quiet
from benchmarks.lab.lab import Lab
from benchmarks.lab.schema import PairedRow, make_row
from benchmarks.systems.models import model
from benchmarks.systems.systems import System
from mlff_triton._common.timing import QUANTILES, Environment, Timing, device_name

BENCH = "cpu"
RUNS = 3  # of each simulation
STEPS = 20, 5000  # fewest and most of a simulation


class Run(Protocol):
    """Turns of a simulation.

    Attributes
    ----------
    steps : int
        Steps of a turn.
    """

    steps: int

    def __call__(self) -> float:
        """Simulate, and return the time of a step in ms."""

    def check(self) -> float:
        """Return the error of forces in the last turn; raise `GateError` if it is large."""


@dataclass
class Session:
    """A run of the bench.

    Attributes
    ----------
    lab : Lab
        Time limits, results and complaints.
    where : Environment
        Description of the CPU and the software.
    implementations : sequence of str
        Names of what to measure.
    asked : sequence of int
        Numbers of threads that were asked for; those of each case if empty.
    """

    lab: Lab
    where: Environment
    implementations: Sequence[str]
    asked: Sequence[int] = ()

    def threads(self, case: Case) -> list[int]:
        """Return the numbers of threads for a case, none above the number of cores."""
        if self.asked:
            return list(self.asked)
        cores = os.cpu_count() or 1
        return [n for n in case.threads if n <= cores]

    @contextmanager
    def guarded(self, case: Case, key: Key, precision: str = "float32") -> Iterator[None]:
        """Report a failure of the block, which prints nothing, as a row without a time."""
        try:
            with quiet(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        except Exception as problem:  # noqa: BLE001 - a failure must not stop the run
            self.lab.complain(f"{BENCH} {case.name} {key[0]}", problem)
            error = problem.error if isinstance(problem, GateError) else None
            self.report(case, key, None, error, None, precision)

    def run(self, case: Case, runs: Mapping[Key, Run], base: Key) -> None:
        """Let simulations alternate, and report their rows with ratios to one of them."""
        ready = {}
        seconds = self.lab.budget.sampling
        for key, run in runs.items():
            with self.guarded(case, key):
                run.steps = int(np.clip(1e3 * seconds / RUNS / run(), *STEPS))
                ready[key] = run
        contest = hold(ready, seconds, (RUNS, RUNS))
        self.report_failures(case, contest)
        errors = {}
        for key in contest.ms:
            with self.guarded(case, key):
                errors[key] = ready[key].check()
        for key, error in errors.items():
            self.report(case, key, timing_of(contest, key), error, contest.ratio(key, base))

    def report_failures(self, case: Case, contest: Contest) -> None:
        """Report the methods that did not finish a contest."""
        for key, problem in contest.failures.items():
            with self.guarded(case, key):
                raise problem

    def report(
        self,
        case: Case,
        key: Key,
        timing: Timing | None,
        error: float | None,
        ratio: float | None = None,
        precision: str = "float32",
    ) -> None:
        """Write the row of a method with a number of threads; without a timing, of a failure."""
        name, threads = key
        torch.set_num_threads(threads)
        where = replace(self.where, gpu=device_name(CPU))
        row = make_row(BENCH, case.name, name, _size(case.build, case.model), where, timing, error)
        given = {"threads": threads, "precision": precision, "ratio": ratio}
        self.lab.report(PairedRow(**asdict(row), **given))


@cache
def _size(build: Callable[[], System], name: str) -> tuple[int, int]:
    """Return the number of atoms of a system, and of edges in a model of some name."""
    system = build()
    return system.n_atoms, system.count_edges(model(name).config.cutoff_upper)


def timing_of(contest: Contest, key: Key, peak: float | None = None) -> Timing:
    """Return the quantiles of the times of a method in a contest."""
    p20, p50, p80 = np.quantile(contest.ms[key], QUANTILES).tolist()
    return Timing(p20, p50, p80, peak)
