"""Measure the cases of bench "cpu"."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from benchmarks.cpu.cases import CASES, EVALUATION, SCALING, Case
from benchmarks.cpu.entrants import ENTRANTS
from benchmarks.cpu.evaluations import run_evaluations
from benchmarks.cpu.session import BENCH, CPU, Session
from benchmarks.lab.lab import Lab
from mlff_triton._common.timing import environment

IMPLEMENTATIONS = tuple(ENTRANTS)
OURS = tuple(name for name, entrant in ENTRANTS.items() if not entrant.is_peer)

PARTS: dict[str, Callable[[Session, Case], None]] = {
    EVALUATION: run_evaluations,
    SCALING: run_evaluations,
}


def run_cpu(
    lab: Lab, cases: Sequence[str], implementations: Sequence[str], threads: Sequence[int] = ()
) -> None:
    """Measure cases with some implementations and numbers of threads, as the time allows."""
    before = torch.get_num_threads()
    session = Session(lab, environment(CPU), implementations, threads)
    try:
        for name in cases:
            if lab.budget.left <= 0:
                lab.skip(f"{BENCH} {name}", "the time is up")
            else:
                PARTS[CASES[name].kind](session, CASES[name])
    finally:
        torch.set_num_threads(before)
