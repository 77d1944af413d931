"""Measure the cases of bench "cpu"."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from benchmarks.cpu import first_calls, ranks, simulations
from benchmarks.cpu.cases import CASES, EVALUATION, FIRST, LAMMPS, MD, SCALING, Case
from benchmarks.cpu.entrants import ENTRANTS
from benchmarks.cpu.evaluations import run_evaluations
from benchmarks.cpu.methods import CPU
from benchmarks.cpu.session import BENCH, Session
from benchmarks.lab.lab import Lab
from benchmarks.systems.models import model
from mlff_triton._common.timing import environment
from mlff_triton.errors import MlffTritonError

IMPLEMENTATIONS = (*ENTRANTS, simulations.COMMAND, *first_calls.NAMES, *ranks.NAMES)
PEERS = tuple(name for name, entrant in ENTRANTS.items() if entrant.is_peer)
OURS = tuple(name for name in IMPLEMENTATIONS if name not in PEERS)

PARTS: dict[str, Callable[[Session, Case], None]] = {
    EVALUATION: run_evaluations,
    SCALING: run_evaluations,
    MD: simulations.run_simulations,
    FIRST: first_calls.run_first_calls,
    LAMMPS: ranks.run_ranks,
}


def run_cpu(
    lab: Lab, cases: Sequence[str], implementations: Sequence[str], threads: Sequence[int] = ()
) -> None:
    """Measure cases with some implementations and numbers of threads, as the time allows."""
    before = torch.get_num_threads()
    session = Session(lab, environment(CPU), implementations, threads)
    try:
        for name in cases:
            reason = "the time is up" if lab.budget.left <= 0 else _obstacle(CASES[name])
            if reason:
                lab.skip(f"{BENCH} {name}", reason)
            else:
                PARTS[CASES[name].kind](session, CASES[name])
    finally:
        torch.set_num_threads(before)


def _obstacle(case: Case) -> str | None:
    """Return why there is no model for a case, or None if there is one."""
    try:
        model(case.model)
    except MlffTritonError as error:
        return str(error)
    return None
