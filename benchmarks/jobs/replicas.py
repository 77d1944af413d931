"""Time per step of ``mlff-triton md`` with many replicas, on one device and on several.

Usage: ``python -m benchmarks.jobs.replicas --devices cuda:0 cuda:0,cuda:1``. Each run is a process
of its own on one of these lists of devices. The time is that of the steps alone, as the command
reports it, without the start of processes. The gate compares forces of the last frames
with the exact module in float64, and demands the logs of the first run of all others, to the byte.
Rows go to ``replicas.csv``, whose case names the structure, the replicas and the steps between
frames.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import ase.io
import torch

from benchmarks.dynamics.command import WALL_TIME, CommandError
from benchmarks.engine.implementations import OUR_TOLERANCE
from benchmarks.jobs.predict import CHECKED, largest_error, name_of
from benchmarks.lab.lab import Lab
from benchmarks.lab.schema import RESULTS, Results, make_row
from benchmarks.systems.models import CHECKOUT
from mlff_triton._common.timing import Timing, environment
from mlff_triton.dynamics import read_structure
from mlff_triton.dynamics.outputs import names, trajectory_names
from mlff_triton.dynamics.restart import load_restart

BENCH = "replicas"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all lists of devices, and write their rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", nargs="+", default=["cuda:0"], help="as in --device")
    parser.add_argument("--structure", default="alanine-dipeptide-water")
    parser.add_argument("--replicas", type=int, default=256)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--every", type=int, default=100, help="steps between frames")
    parser.add_argument("--folder", type=Path, help="folder of the results")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the CSV file")
    options = parser.parse_args(arguments)
    device = torch.device(options.devices[0].partition(",")[0])
    lab = Lab(device, environment(device), Results(options.out))
    n_atoms = options.replicas * len(read_structure(options.structure))
    logs = None
    for devices in options.devices:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            out = Path(folder) / "md"
            ms = run(options, devices, out)
            found = [(out / name).read_bytes() for name in names("log.csv", options.replicas)]
            error = error_of(out)
        logs = logs or found
        is_right = error <= OUR_TOLERANCE and found == logs
        timing = Timing(ms, ms, ms, None) if is_right else None
        case = f"{options.replicas}x{Path(options.structure).name}-every-{options.every}"
        row = make_row(BENCH, case, name_of(devices), (n_atoms, 0), lab.where, timing, error)
        lab.report(row)
        same = "the same logs" if found == logs else "OTHER LOGS"
        print(f"{devices}: {ms:.3f} ms per step, {same}")


def run(options: argparse.Namespace, devices: str, out: Path) -> float:
    """Run the command on some devices, and return the time per step in ms."""
    command = [sys.executable, "-m", "benchmarks.jobs.command", "md", options.structure]
    given = {
        "replicas": options.replicas,
        "steps": options.steps,
        "every": options.every,
        "device": devices,
        "out": out,
    }
    done = subprocess.run(  # noqa: S603 - the command is ours
        [*command, *(f"--{name}={value}" for name, value in given.items()), "--threads=1"],
        cwd=CHECKOUT,
        env=os.environ | {"COLUMNS": "200", "NO_COLOR": "1"},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    found = WALL_TIME.search(done.stdout)
    if found is None:
        raise CommandError(f"no wall time in {done.stdout!r}")
    return 1000 * float(found[1]) / int(found[2])


def error_of(out: Path) -> float:
    """Return the error of forces in the last frames of some replicas."""
    snapshot = load_restart(out / "restart.npz")
    count = max(1, CHECKED // len(snapshot.systems[0]))
    paths = trajectory_names(snapshot.settings, len(snapshot.systems))[:count]
    return largest_error([ase.io.read(out / name) for name in paths])


if __name__ == "__main__":
    main()
