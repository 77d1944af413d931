"""Rows of results, selected for figures and tables, and the names that both give them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from benchmarks.lab.schema import AnyRow, Row

OURS = "engine"
OUR_LOOPS, SCALING = "cpu", "scaling-"  # backend for CPUs, and prefix of cases by threads
PEERS = ("torch", "warp", "warp-graph", "warp-compile")
BIO_OURS, BIO_REFERENCE = "accelerated-fp16", "reference"
BIO_PEERS = ("sdpa-fp16", "sdpa-fp16-graph", "compile-fp16")
ACCELERATED = "accelerated-"  # prefix of our precisions
AUTOCAST, KERNELS = "accelerated-autocast", "half-kernels"  # with the precisions of a package
NEW_SIZE = "new-size"  # the first prediction of a size, with these precisions
MODEL_PEERS = ("reference-graph", "half", KERNELS, "half-graph", "compile", "compile-half")
CONVOLUTION_PEERS = (
    *("cuequivariance", "openequivariance", "luna"),
    *("e3nn-compiled", "e3nn", "torch"),
)
DOCKING_OURS, DOCKING_PEERS = "accelerated", ("reference", "compile")
PREDICTIONS = ("boltz2-", "openfold3-", "protenix-")  # prefixes of cases
COMMAND, TORCHMD_NET = "command", "torchmd-net-"  # prefix of all routes to TorchMD-NET
SIMULATIONS = {  # labels of routes, all with Langevin dynamics, by name
    "command": "mlff-triton md",
    "ase": "through ASE",
    "openmm": "through OpenMM on the GPU",
    "openmm-host": "through OpenMM on the host",
    "torch-sim": "through TorchSim",
}
ONE_RANK = "ranks-1"
DIVISIONS = {  # columns and lines of boxes that are divided
    ONE_RANK: "one GPU",
    "ranks-2": "two GPUs",
    "ranks-4": "four GPUs",
    "ranks-8": "eight GPUs",
}
LAMMPS_MODELS = {"random": "F = 128", "shipped": "shipped", "charged": "TensorNet2"}
LARGEST = "1000000"  # a random box, although it is named after its size
BATCHES = "batch-"  # prefix of the cases that are compared with PyTorch only
NS_PER_DAY = 0.5e-6 * 86400e3  # for steps of 0.5 fs that take 1 ms
LABELS = {
    "engine": "mlff_triton",
    "exact": "mlff_triton, exact module",
    "torch": "TorchMD-NET, PyTorch",
    "warp": "TorchMD-NET, Warp",
    "warp-graph": "TorchMD-NET, Warp + CUDA graph",
    "warp-compile": "TorchMD-NET, Warp + torch.compile",
}
Times = dict[str, dict[str, Any]]  # case -> implementation -> row that passed


def passed(rows: Sequence[AnyRow]) -> Times:
    """Group rows with a time by case, in order of size, and by implementation.

    A case is compared on one machine: that of its last row, as files list the newest rows last.
    """
    timed = [row for row in rows if row.ms_p50 is not None]
    machine_of = {row.case: row.machine for row in timed}
    times: Times = {}
    for row in sorted(timed, key=lambda row: row.size):
        if row.machine == machine_of[row.case]:
            times.setdefault(row.case, {})[row.method] = row
    return times


def best_peer(rows: dict[str, Row], peers: Sequence[str] = PEERS) -> Row | None:
    """Return the fastest of the peers that passed."""
    found = [rows[name] for name in peers if name in rows]
    return min(found, key=p50, default=None)


def scaling(times: Times) -> Times:
    """Return the cases that were measured by the number of threads."""
    return {case: rows for case, rows in times.items() if case.startswith(SCALING)}


def best_torchmd_net(rows: dict[str, Row]) -> Row | None:
    """Return the fastest simulation of TorchMD-NET that passed."""
    return best_peer(rows, [name for name in rows if name.startswith(TORCHMD_NET)])


def speed_up(slow: Row, fast: Row) -> float:
    """Return the ratio of the medians."""
    return p50(slow) / p50(fast)


def fastest(rows: dict[str, Row]) -> Row | None:
    """Return the fastest of the precisions that the accelerated model was measured in."""
    return best_peer(rows, [name for name in rows if name.startswith(ACCELERATED)])


def predictions(times: Times) -> Times:
    """Return the cases that predict structures, in the precisions of their packages."""
    return {c: rows for c, rows in times.items() if _predicts(c) and AUTOCAST in rows}


def largest_of_kind(times: Times) -> Times:
    """Return the last case of those whose names differ in the number at their ends."""
    last = {case.rpartition("-")[0]: case for case in times}
    return {case: rows for case, rows in times.items() if case in last.values()}


def other_models(times: Times) -> Times:
    """Return the cases that do not predict structures."""
    return {c: rows for c, rows in times.items() if not _predicts(c)}


def _predicts(case: str) -> bool:
    return case.startswith(PREDICTIONS)


def by_model(times: Times) -> list[str]:
    """Sort cases by model, keeping the order of size."""
    return sorted(times, key=lambda case: case.rpartition("-")[0])


def rows_of(times: Times, name: str) -> list[Row]:
    """Return the rows of an implementation in all cases that have one."""
    return [rows[name] for rows in times.values() if name in rows]


def p50(row: Row) -> float:
    """Return the median time in ms, NaN without one."""
    return math.nan if row.ms_p50 is None else row.ms_p50


def is_scaling(case: str, model: str) -> bool:
    """Return True for a box of a model that one or several GPUs compute."""
    kind, name, _ = case.split("-")
    return name == model and kind in {"strong", "overhead"}


def water_first(times: Times) -> Times:
    """Sort simulations by kind: first water, whose names are sizes; the largest box is random."""
    named = {f"random-{name}" if name == LARGEST else name: rows for name, rows in times.items()}
    return dict(sorted(named.items(), key=lambda item: item[0].rstrip("0123456789")))
