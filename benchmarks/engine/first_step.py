"""``python -m benchmarks.engine.first_step``: the time to the first forces, in new processes.

A process first runs with empty caches of Triton and of this package ("cold"), and then again with
the caches that it has filled ("warm"). Modules are kept as bytecode, like those of an installed
package. PyTorch is imported before the clock starts. The stages are ``import`` of the package,
``engine`` (the shipped model, its tables, and the start of CUDA), ``forces`` of the first step,
their sum ``total``, and the ``second`` step. Rows go to ``first-step.csv``.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.engine.cases import CASES, Case
from benchmarks.engine.gate import GateError, Truth
from benchmarks.engine.implementations import OUR_TOLERANCE, Outcome
from benchmarks.lab.lab import Lab
from benchmarks.lab.schema import RESULTS, Results, make_row
from benchmarks.systems.models import CHECKOUT, model
from benchmarks.systems.systems import System
from mlff_triton._common.timing import QUANTILES, Timing, environment

BENCH = "first-step"
STAGES = ("import", "engine", "forces", "second")
TOTAL = STAGES[:3]
CACHES = {  # environment variable -> folder
    "TRITON_CACHE_DIR": "triton",
    "MLFF_TRITON_CACHE": "package",
}
SYSTEMS = {case.name: case for case in CASES if case.bench == "shipped"}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all cases, and write their rows."""
    parser = argparse.ArgumentParser(description="Measure the time to the first forces.")
    parser.add_argument("--cases", nargs="+", choices=SYSTEMS, default=["21", "3993"])
    parser.add_argument("--repeats", type=int, default=3, help="processes with empty caches")
    parser.add_argument("--device", default="cuda", help="cpu, cuda, cuda:1, ...")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the CSV file")
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    lab = Lab(device, environment(device), Results(options.out))
    for name in options.cases:
        measure_case(lab, SYSTEMS[name], options.repeats)


def measure_case(lab: Lab, case: Case, repeats: int) -> None:
    """Measure one system with empty and with filled caches, and write rows of each stage."""
    system = case.build()
    size = system.n_atoms, system.count_edges(model(case.model).cutoff)
    for (state, stage), (timing, error) in time_stages(lab, case, repeats, lab.device).items():
        lab.report(make_row(BENCH, f"{case.name} {state}", stage, size, lab.where, timing, error))


def time_stages(
    lab: Lab, case: Any, repeats: int, device: torch.device, threads: int | None = None
) -> dict[tuple[str, str], tuple[Timing | None, float | None]]:
    """Time the stages of new processes.

    Parameters
    ----------
    lab : Lab
        Complains about wrong results.
    case : Case
        A case with a name, a model and a function that builds its system.
    repeats : int
        Number of processes with empty caches, and of those with filled ones.
    device : torch.device
        Device under test.
    threads : int, optional
        Threads of PyTorch; by default as many as it takes.

    Returns
    -------
    dict
        Timing and error by state of the caches and by stage. Wrong results have no timing.
    """
    system = case.build()
    truth = Truth.of(model(case.model), system, device)
    runs: dict[str, list[NDArray[np.float64]]] = {"cold": [], "warm": []}
    error: float | None = 0.0
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            for state, times in runs.items():
                seconds, outcome = run_process(system, device, Path(folder), threads)
                times.append(seconds)
                error = _check(lab, f"{case.name} {state}", truth, outcome, error)
    found = {}
    for state, times in runs.items():
        stages = dict(zip(STAGES, np.transpose(times), strict=True))
        stages["total"] = sum(stages[name] for name in TOTAL)
        for stage, seconds in stages.items():
            p20, p50, p80 = (1e3 * np.quantile(seconds, QUANTILES)).tolist()
            timing = None if error is None else Timing(p20, p50, p80, None)
            found[state, stage] = timing, error
    return found


def run_process(
    system: System, device: torch.device, folder: Path, threads: int | None = None
) -> tuple[NDArray[np.float64], Outcome]:
    """Return the seconds of each stage and the results of a new process with caches in a folder."""
    inputs, results = folder / "system.npz", folder / "results.npz"
    cell = {} if system.cell is None else {"cell": system.cell}
    np.savez(inputs, numbers=system.numbers, positions=system.positions, **cell)
    settings = {variable: str(folder / name) for variable, name in CACHES.items()}
    settings["PYTHONDONTWRITEBYTECODE"] = ""  # which some machines set
    if threads is not None:
        settings["OMP_NUM_THREADS"] = str(threads)
    subprocess.run(  # noqa: S603 - the module is ours
        [sys.executable, "-m", "benchmarks.engine.fresh_process", inputs, results, str(device)],
        cwd=CHECKOUT,
        env=os.environ | settings,
        check=True,
    )
    with np.load(results) as found:
        outcome = Outcome(*(torch.from_numpy(found[name]) for name in ("energy", "forces")))
        return found["seconds"], outcome


def _check(
    lab: Lab, name: str, truth: Truth, outcome: Outcome, error: float | None
) -> float | None:
    """Return the largest error so far, or None if results were wrong."""
    try:
        found = truth.check(outcome, OUR_TOLERANCE)
    except GateError as wrong:
        lab.complain(f"{BENCH} {name}", wrong)
        return None
    return None if error is None else max(error, found)


if __name__ == "__main__":
    main()
