"""Steps of simulations on a CPU: those of the command, and of `Simulation` by backend."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from ase import Atoms

from benchmarks.cpu.cases import Case
from benchmarks.cpu.contest import Key
from benchmarks.cpu.entrants import ENTRANTS, OURS
from benchmarks.cpu.methods import CPU, engine_of
from benchmarks.cpu.session import STEPS, Run, Session
from benchmarks.dynamics import cases as md
from benchmarks.dynamics import command
from benchmarks.dynamics.melted import Start, drawn, moved
from benchmarks.engine.gate import Truth
from benchmarks.engine.implementations import OUR_TOLERANCE, Outcome
from benchmarks.systems.models import model
from mlff_triton.calculators import TensorNetCalculator
from mlff_triton.dynamics import Settings, Simulation, Stage
from mlff_triton.dynamics.outputs import LogRow
from mlff_triton.dynamics.simulation import Monitor

BACKENDS = (OURS, "exact")
COMMAND = "command"


@dataclass
class Clock(Monitor):
    """Time from the first observation of a run to its last step, as the command reports it."""

    began: float = field(default=0.0, init=False)
    seconds: float = field(default=0.0, init=False)

    def observed(self, row: LogRow) -> None:  # noqa: ARG002
        """Start at the first row."""
        self.began = self.began or time.perf_counter()

    def stepped(self, step: int) -> None:  # noqa: ARG002
        """Read the clock."""
        self.seconds = time.perf_counter() - self.began


@dataclass
class Simulated:
    """Turns of a simulation in this process, always from the same positions.

    Attributes
    ----------
    case : Case
        The case.
    start : Start
        The system and its positions.
    calculator : TensorNetCalculator
        Its calculator, which serves all turns.
    tolerance : float
        Largest relative error of forces that passes.
    threads : int
        Threads of PyTorch.
    steps : int
        Steps of a turn.
    """

    case: Case
    start: Start
    calculator: TensorNetCalculator
    tolerance: float
    threads: int
    steps: int = STEPS[0]

    def __call__(self) -> float:
        """Return the time of a step in ms."""
        settings = Settings(
            stages=(Stage("nvt", self.steps),),
            temperature=md.TEMPERATURE,
            timestep=md.TIME_STEP,
            friction=md.FRICTION,
            every=self.steps,
            threads=self.threads,
        )
        clock = Clock()
        torch.set_num_threads(self.threads)
        with tempfile.TemporaryDirectory() as folder:
            atoms = self.start.images()[0]
            run = Simulation.start(atoms, self.calculator, settings, Path(folder) / "out")
            run.run(clock)
        self._last = run.systems[0]
        return 1e3 * clock.seconds / self.steps

    def check(self) -> float:
        """Return the error of forces at the last positions."""
        end = moved(self.start.system, self._last.positions)
        atoms = Atoms(end.numbers, end.positions, cell=end.cell, pbc=end.cell is not None)
        found = self.calculator.calculate_many([atoms])[0]
        energy, forces = (torch.tensor(found[name]) for name in ("energy", "forces"))
        truth = Truth.of(model(self.case.model), end, CPU)
        return truth.check(Outcome(energy[None], forces), self.tolerance)


@dataclass
class Commanded:
    """Turns of ``mlff-triton md``, each in a new process.

    Attributes
    ----------
    case : Case
        The case.
    start : Start
        Positions that it starts from.
    threads : int
        Threads of PyTorch.
    steps : int
        Steps of a turn.
    """

    case: Case
    start: Start
    threads: int
    steps: int = STEPS[0]

    def __call__(self) -> float:
        """Return the time of a step in ms, as the command reports it."""
        case = md.Case(self.case.name, self.case.build, ms=1.0, steps=self.steps)
        plan = md.Plan(command_steps=self.steps)
        with tempfile.TemporaryDirectory() as folder:
            self._last = command.run(case, self.start, CPU, plan, Path(folder), self.threads)
        return self._last.ms

    def check(self) -> float:
        """Return the error of forces in the last state, and of the energy in the log."""
        network, end = model(self.case.model), self._last.system
        forces = engine_of(network, end, OURS)(end.positions).forces
        outcome = Outcome(torch.from_numpy(self._last.energy), forces)
        return Truth.of(network, end, CPU).check(outcome, OUR_TOLERANCE)


def run_simulations(session: Session, case: Case) -> None:
    """Measure the command and both backends, and report their rows."""
    start = drawn(case.build())
    calculators = {
        name: TensorNetCalculator(model(case.model), device="cpu", backend=name)
        for name in BACKENDS
        if name in session.implementations
    }
    for threads in session.threads(case):
        runs: dict[Key, Run] = {}
        if COMMAND in session.implementations:
            runs[COMMAND, threads] = Commanded(case, start, threads)
        for name, calculator in calculators.items():
            runs[name, threads] = Simulated(
                case, start, calculator, ENTRANTS[name].tolerance, threads
            )
        session.run(case, runs, base=(OURS, threads))
