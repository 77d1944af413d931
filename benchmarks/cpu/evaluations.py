"""Energies and forces of atoms that move: ours by backend and by number of threads, and peers."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.cpu.cases import SCALING, Case
from benchmarks.cpu.contest import Key, hold
from benchmarks.cpu.entrants import ENTRANTS, OURS, Entrant
from benchmarks.cpu.memory import Peak
from benchmarks.cpu.methods import CPU, Evaluate
from benchmarks.cpu.session import Session, timing_of
from benchmarks.engine.gate import Truth, check_plausible
from benchmarks.lab.guards import at_most
from benchmarks.systems.models import model
from benchmarks.systems.systems import System

AMPLITUDE = 0.02  # Å, within the skin of neighbor lists
TURN = 30.0  # ms, for which a method evaluates in a turn, at least
MOST = 50  # evaluations in a turn


@dataclass
class Moving:
    """Turns of a method: evaluations of new random positions, after one that is not timed.

    Attributes
    ----------
    evaluate : callable
        Compute the forces at some positions.
    positions : float64 [N, 3]
        Positions around which atoms move, Å.
    threads : int
        Threads of PyTorch.
    count : int
        Evaluations in a turn.
    """

    evaluate: Evaluate
    positions: NDArray[np.float64]
    threads: int
    count: int = 1

    def __call__(self) -> float:
        """Return the mean time of an evaluation in ms."""
        torch.set_num_threads(self.threads)
        shape = self.count + 1, *self.positions.shape
        moves = np.random.default_rng().uniform(-AMPLITUDE, AMPLITUDE, shape)
        self.evaluate(self.positions + moves[0])
        began = time.perf_counter()
        for move in moves[1:]:
            self.evaluate(self.positions + move)
        return 1e3 * (time.perf_counter() - began) / self.count

    def calibrate(self) -> None:
        """Choose the number of evaluations in a turn."""
        self.count = int(np.clip(TURN / self(), 1, MOST))


def run_evaluations(session: Session, case: Case) -> None:
    """Measure the methods that were asked for, and report their rows."""
    lab, counts = session.lab, session.threads(case)
    system = case.build()
    truth = Truth.of(model(case.model), case.checked.build(), CPU)
    turns: dict[Key, Moving] = {}
    errors: dict[str, float] = {}
    peaks: dict[Key, float | None] = {}
    for entrant in _entrants(session, case):
        name, threads = entrant.name, [counts[-1]] if entrant.is_peer else counts
        with (
            session.guarded(case, (name, threads[-1]), entrant.precision),
            at_most(lab.budget.left_for_one),
        ):
            torch.set_num_threads(threads[-1])
            evaluate, errors[name] = _prepare(entrant, case, system, truth)
            for n in threads:
                peak = Peak()
                turn = Moving(evaluate, system.positions, n)
                turn.calibrate()
                turns[name, n] = turn
                peaks[name, n] = peak.mib() if case.kind == SCALING else None
    contest = hold(turns, lab.budget.sampling)
    session.report_failures(case, contest)
    for key in contest.ms:
        entrant = ENTRANTS[key[0]]
        timing = timing_of(contest, key, peaks[key])
        ratio = contest.ratio(key, (OURS, key[1]))
        session.report(case, key, timing, errors[key[0]], ratio, entrant.precision)


def _entrants(session: Session, case: Case) -> list[Entrant]:
    """Return the methods for a case, without those that cannot serve it."""
    found = []
    for name in session.implementations:
        if name not in ENTRANTS or (case.kind == SCALING and name != OURS):
            continue
        reason = ENTRANTS[name].refusal(model(case.model))
        if reason:
            session.lab.skip(f"cpu {case.name} {name}", reason)
        else:
            found.append(ENTRANTS[name])
    return found


def _prepare(entrant: Entrant, case: Case, system: System, truth: Truth) -> tuple[Evaluate, float]:
    """Prepare a method, and return it with its error; raise `GateError` if it is wrong."""
    network = model(case.model)
    checked = case.checked.build()
    evaluate = entrant.prepare(network, checked)
    evaluate(
        checked.positions + AMPLITUDE
    )  # so that what is kept of other positions would be wrong
    error = truth.check(evaluate(checked.positions), entrant.tolerance)
    if case.stand_in is not None:
        evaluate = entrant.prepare(network, system)
        check_plausible(evaluate(system.positions))
    return evaluate, error
