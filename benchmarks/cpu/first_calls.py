"""First forces of new processes on a CPU, with empty and with filled caches."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.cpu.cases import Case
from benchmarks.cpu.methods import CPU
from benchmarks.cpu.session import Session
from benchmarks.engine.first_step import STAGES, time_stages

NAMES = (*STAGES, "total")
PROCESSES = 3  # with empty caches, and as many with filled ones


def run_first_calls(session: Session, case: Case) -> None:
    """Measure the stages of new processes, and report a row of each."""
    for threads in session.threads(case):
        for (state, stage), found in time_stages(
            session.lab, case, PROCESSES, CPU, threads
        ).items():
            if stage in session.implementations:
                named = replace(case, name=f"{case.name}-{state}")
                session.report(named, (stage, threads), *found)
