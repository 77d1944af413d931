"""Measure simulations: warm up, return to the start, time, check, report."""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks.dynamics import command
from benchmarks.dynamics.cases import FRICTION, PEERS, TEMPERATURE, TIME_STEP, Case, Plan
from benchmarks.dynamics.implementations import OUR_SIMULATORS, PEER_SIMULATORS, missing
from benchmarks.dynamics.melted import Start, moved, start_of
from benchmarks.dynamics.simulators import Simulator
from benchmarks.dynamics.torchmd_net import Sharing
from benchmarks.engine.cases import TRUTH_ATOMS
from benchmarks.engine.gate import GateError, Truth, check_plausible
from benchmarks.engine.implementations import OUR_TOLERANCE, PEER_TOLERANCE, Outcome, engine
from benchmarks.lab.guards import at_most, clean_up, quiet
from benchmarks.lab.lab import Lab
from benchmarks.lab.schema import make_row
from benchmarks.systems.models import model
from benchmarks.systems.systems import System
from mlff_triton._common.timing import (
    QUANTILES,
    Timing,
    measure,
    peak_mib,
    reset_peak,
    synchronize,
)

BENCH = "md"
SIGMAS = 5  # standard errors by which a mean temperature may be off
BIAS = 0.02  # and the same for the time step, relative: velocities of hydrogen are slightly low
RELAXATION = 1 / FRICTION  # ps, in which the thermostat changes an energy
READINGS = 30  # per measurement, if steps are fast

Measured = list[tuple[str, Timing | None, float | None]]  # name, time and error of each row


def run_md(
    lab: Lab,
    cases: Sequence[Case],
    implementations: Sequence[str],
    folder: Path,
    plan: Plan | None = None,
) -> None:
    """Measure each case with the implementations that take part in it, ours first.

    Parameters
    ----------
    lab : Lab
        Device, results and time limits.
    cases : sequence of Case
        Cases to measure.
    implementations : sequence of str
        Names of implementations.
    folder : Path
        Folder of melted systems.
    plan : Plan, optional
        Lengths of the simulations; by default, those for the device.
    """
    bench = _Bench(lab, plan or Plan.of(lab.device), folder)
    for are_peers in (False, True):
        for case in cases:
            for name in implementations:
                if name in case.implementations and (name in PEERS) == are_peers:
                    bench.run(case, name)


class _Bench:
    """The measurements of a run, which share melted systems and a compiled peer."""

    def __init__(self, lab: Lab, plan: Plan, folder: Path) -> None:
        self._lab, self._plan, self._folder = lab, plan, folder
        self._starts: dict[str, Start] = {}
        self._sizes: dict[str, tuple[int, int]] = {}
        self._sharing = Sharing()

    def run(self, case: Case, name: str) -> None:
        """Measure one implementation on one case, and report its rows."""
        lab, label = self._lab, f"{BENCH} {case.name} {name}"
        package = missing(name)
        if package is not None:
            lab.skip(label, f"{package} is not installed")
            return
        if lab.budget.left <= 0:
            lab.skip(label, "the time is up")
            return
        try:
            start = self._start(case)
            self._clean_up(start)
            with at_most(lab.budget.left_for_one), quiet(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                rows = self._measure(case, name, start)
        except Exception as error:  # noqa: BLE001 - a failure must not stop the run
            lab.complain(label, error)
            if case.name not in self._sizes:
                return
            rows = [(name, None, error.error if isinstance(error, GateError) else None)]
        for row, timing, error in rows:
            size = self._sizes[case.name]
            lab.report(make_row(BENCH, case.name, row, size, lab.where, timing, error))

    def _start(self, case: Case) -> Start:
        if case.name not in self._starts:
            start = start_of(case, self._folder, self._lab.device, self._plan)
            self._starts[case.name] = start
            edges = start.system.count_edges(model(case.model).cutoff)
            self._sizes[case.name] = start.system.n_atoms, edges
        return self._starts[case.name]

    def _clean_up(self, start: Start) -> None:
        """Free the memory of the last implementation, but keep a compiled peer of this system."""
        if self._sharing.has(start):
            reset_peak(self._lab.device)
            return
        self._sharing.forget()
        clean_up(self._lab.device)

    def _measure(self, case: Case, name: str, start: Start) -> Measured:
        if name == "command":
            return _run_command(self._lab, self._plan, case, start)
        if name == "engine":
            return _rest(self._lab, case, start)
        network, device = model(case.model), self._lab.device
        if name in OUR_SIMULATORS:
            simulator = OUR_SIMULATORS[name](network, start, device)
            return [(name, *_simulate(self._lab, self._plan, case, start, simulator, name))]
        truth = Truth.of(network, start.system, device) if _has_truth(start.system) else None
        shared = self._sharing.model(network, start, device, truth)
        reset_peak(device)  # that of the truth, or of a slower mode
        simulator = PEER_SIMULATORS[name](shared, start, device)
        times = _simulate(self._lab, self._plan, case, start, simulator, name)
        return [(name + shared.mode, *times)]


def _run_command(lab: Lab, plan: Plan, case: Case, start: Start) -> Measured:
    """Run the command; its last forces are those of the engine that it uses."""
    runs = []
    for _ in range(plan.command_runs):
        with tempfile.TemporaryDirectory() as folder:
            runs.append(command.run(case, start, lab.device, plan, Path(folder)))
    run = runs[-1]
    prepared = engine(model(case.model), run.system, lab.device)
    forces = prepared.read(prepared.step()).forces
    outcome, error = Outcome(torch.from_numpy(run.energy), forces), None
    if case.model == "shipped":
        error = _check(lab, case, outcome, run.system)
    else:  # atoms have come closer than 0.5 Å, where tables need not be as exact
        check_plausible(outcome)
    if plan.has_temperature(case):
        interval = plan.log_every(case) * TIME_STEP / 1000
        check_temperature(run.temperatures, interval, run.system.n_atoms)
    times = {"command": [r.ms for r in runs], "command-total": [r.total_ms for r in runs]}
    return [(name, _timing(values), error) for name, values in times.items()]


def _rest(lab: Lab, case: Case, start: Start) -> Measured:
    """Time the engine on atoms at rest."""
    prepared = engine(model(case.model), start.system, lab.device)
    timing = measure(prepared.step, lab.device, seconds=lab.budget.sampling)
    outcome = prepared.read(prepared.step())
    return [("engine", timing, _check(lab, case, outcome, start.system))]


def _simulate(
    lab: Lab, plan: Plan, case: Case, start: Start, simulator: Simulator, name: str
) -> tuple[Timing, float | None]:
    """Time a simulation, and check its temperature and its results at its end."""
    trial = time_steps(simulator, start, lab.device, plan)
    if plan.has_temperature(case):
        atoms = start.system.n_atoms
        check_temperature(trial.temperatures, trial.interval, atoms, mixes=name != "ase-verlet")
    end = moved(start.system, simulator.state()[0])
    tolerance = PEER_TOLERANCE if name in PEERS else OUR_TOLERANCE
    error = _check(lab, case, simulator.evaluate(end), end, tolerance)
    return trial.timing, error


@dataclass(frozen=True)
class Trial:
    """A simulation that was timed.

    Attributes
    ----------
    timing : Timing
        Time per step.
    temperatures : list of float
        Temperature at each reading of the clock, K.
    interval : float
        Simulated time between readings, ps.
    """

    timing: Timing
    temperatures: list[float]
    interval: float


def time_steps(simulator: Simulator, start: Start, device: torch.device, plan: Plan) -> Trial:
    """Time steps in several chunks by the host's clock, after a warm-up and a new start."""

    def seconds(steps: int) -> float:
        synchronize(device)
        begun = time.perf_counter()
        simulator.advance(steps)
        synchronize(device)
        return time.perf_counter() - begun

    simulator.reset()
    simulator.advance(1)  # compiles
    few = max(plan.warm_up // 10, 1)
    pace = seconds(few) / few
    most = max(int(plan.patience / pace), 1)
    simulator.advance(min(plan.warm_up, most))
    steps = min(max(plan.chunk, int(plan.seconds / READINGS / pace)), most)
    simulator.reset()
    times: list[float] = []
    temperatures = []
    while sum(times) < plan.seconds or len(times) < plan.chunks:
        times.append(seconds(steps))
        temperatures.append(start.temperature(simulator.state()[1]))
    timing = _timing([1000 * seconds / steps for seconds in times], peak_mib(device))
    return Trial(timing, temperatures, steps * TIME_STEP / 1000)


def _timing(ms: Sequence[float], peak_mib: float | None = None) -> Timing:
    p20, p50, p80 = np.quantile(ms, QUANTILES).tolist()
    return Timing(p20, p50, p80, peak_mib)


def check_temperature(
    temperatures: Sequence[float], interval: float, n_atoms: int, *, mixes: bool = True
) -> None:
    """Raise a `GateError` if the mean temperature of the second half cannot be that of 300 K.

    An instant has a relative variance of 2 / (3 N). Readings that are closer than twice the
    relaxation time of the thermostat count as one.

    Parameters
    ----------
    temperatures : sequence of float
        Temperatures at regular intervals, K.
    interval : float
        Simulated time between them, ps.
    n_atoms : int
        Number of atoms.
    mixes : bool
        If False, all readings count as one, as without a thermostat.
    """
    half = temperatures[len(temperatures) // 2 :]
    independent = min(max(len(half) * interval / (2 * RELAXATION), 1), len(half)) if mixes else 1
    sigma = TEMPERATURE * (2 / (3 * n_atoms * independent)) ** 0.5
    limit = SIGMAS * sigma + BIAS * TEMPERATURE
    mean = float(np.mean(half))
    if not abs(mean - TEMPERATURE) <= limit:
        raise GateError(f"the mean temperature is {mean:.1f} K, not 300 K within {limit:.1f} K")


def _has_truth(system: System) -> bool:
    return system.n_atoms <= TRUTH_ATOMS * (2 if system.n_systems > 1 else 1)


def _check(
    lab: Lab, case: Case, outcome: Outcome, system: System, tolerance: float = OUR_TOLERANCE
) -> float | None:
    """Return the error of forces; of large systems, check only that the results are plausible."""
    if not _has_truth(system):
        check_plausible(outcome)
        return None
    return Truth.of(model(case.model), system, lab.device).check(outcome, tolerance)
