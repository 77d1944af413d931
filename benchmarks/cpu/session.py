"""State of a run of bench "cpu": its lab, the methods and threads to measure, and its rows."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from benchmarks.cpu.cases import Case
from benchmarks.cpu.contest import Contest, Key
from benchmarks.lab.lab import Lab
from benchmarks.lab.schema import PairedRow, make_row
from benchmarks.systems.models import model
from mlff_triton._common.timing import QUANTILES, Environment, Timing, device_name

BENCH = "cpu"
CPU = torch.device("cpu")
OURS = "cpu"  # the backend that others are compared with


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
        system = case.build()
        size = system.n_atoms, system.count_edges(model(case.model).config.cutoff_upper)
        torch.set_num_threads(threads)
        where = replace(self.where, gpu=device_name(CPU))
        row = make_row(BENCH, case.name, name, size, where, timing, error)
        values = {column: getattr(row, column) for column in row.__dataclass_fields__}
        self.lab.report(PairedRow(**values, threads=threads, precision=precision, ratio=ratio))


def timing_of(contest: Contest, key: Key, peak: float | None = None) -> Timing:
    """Return the quantiles of the times of a method in a contest."""
    p20, p50, p80 = np.quantile(contest.ms[key], QUANTILES).tolist()
    return Timing(p20, p50, p80, peak)
