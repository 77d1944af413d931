"""Time of ``mlff-triton predict`` for many small molecules on 1, 2, 4... GPUs.

Usage: ``python -m benchmarks.jobs.predict --gpus 1 2 4``. Each run is a process of its own, which
sees one of these numbers of GPUs. Its wall time counts, from start to end. Molecules are distorted
copies of eight with 3 to 14 atoms. The gate compares the first results with the exact module in
float64, if they are extended XYZ. Rows go to ``predict.csv``: ``atoms`` counts all atoms, and the
case names the number of molecules and the format.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import ase.io
import numpy as np
import torch
from ase import Atoms
from ase.build import molecule

from benchmarks.engine.implementations import OUR_TOLERANCE
from benchmarks.lab.lab import Lab
from benchmarks.lab.schema import RESULTS, Results, make_row
from benchmarks.systems.models import CHECKOUT
from mlff_triton import TensorNetCalculator
from mlff_triton._common.timing import Timing, environment
from mlff_triton.statics.result_text import extended_xyz

BENCH = "predict"
NAMES = ("H2O", "CH3OH", "CH3CH2OH", "C6H6", "CH3COOH", "CH3CONH2", "C4H4NH", "trans-butane")
NOISE = 0.03  # Å
CHECKED = 64  # structures
BLOCK = 10_000  # different molecules


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all numbers of GPUs, and write their rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--structures", type=int, default=1_000_000)
    parser.add_argument("--gpus", type=int, nargs="+", default=[1], help="0 is the CPU")
    parser.add_argument("--workers-per-gpu", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="folder of the structures and results")
    parser.add_argument("--suffix", default="xyz", help="xyz, parquet or h5")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the CSV file")
    options = parser.parse_args(arguments)
    device = torch.device("cuda" if max(options.gpus) else "cpu")
    lab = Lab(device, environment(device), Results(options.out))
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        source = Path(folder) / "molecules.xyz"
        n_atoms = write_molecules(source, options.structures)
        error = None
        for n_gpus in options.gpus:
            workers = max(1, n_gpus) * options.workers_per_gpu
            result = Path(folder) / f"results-{n_gpus}.{options.suffix}"
            seconds = run(source, result, n_gpus, workers)
            if options.suffix == "xyz":
                error = largest_error(result)
            is_right = error is None or error <= OUR_TOLERANCE
            timing = Timing(*(3 * [1e3 * seconds]), None) if is_right else None
            name = f"{options.structures}-{options.suffix}"
            impl = f"gpus-{n_gpus}-workers-{workers}"
            lab.report(make_row(BENCH, name, impl, (n_atoms, 0), lab.where, timing, error))
            print(f"{n_gpus} GPUs, {workers} workers: {options.structures / seconds:.0f}/s")


def molecules() -> Iterator[Atoms]:
    """Yield distorted molecules without end."""
    draw = np.random.default_rng(0)
    known = [molecule(name) for name in NAMES]
    while True:
        atoms = known[draw.integers(len(known))].copy()
        atoms.positions += draw.normal(0, NOISE, atoms.positions.shape)
        yield atoms


def write_molecules(path: Path, count: int) -> int:
    """Write molecules to a file, the same ones in each block; return the number of all atoms."""
    images = list(islice(molecules(), min(BLOCK, count)))
    rest = images[: count % BLOCK] if count > BLOCK else []
    block, end = map(extended_xyz, (images, rest))
    n_blocks = max(1, count // BLOCK)
    with path.open("wb") as file:
        for _ in range(n_blocks):
            file.write(block)
        file.write(end)
    return n_blocks * sum(map(len, images)) + sum(map(len, rest))


def run(source: Path, result: Path, n_gpus: int, workers: int) -> float:
    """Run the command with some GPUs, and return its wall time in s."""
    visible = ",".join(map(str, range(n_gpus)))
    command = [sys.executable, "-m", "benchmarks.jobs.command", "predict", str(source)]
    began = time.perf_counter()
    subprocess.run(  # noqa: S603 - the command is ours
        [*command, "--out", str(result), "--workers", str(workers)],
        cwd=CHECKOUT,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": visible},
        check=True,
    )
    return time.perf_counter() - began


def largest_error(result: Path) -> float:
    """Return the largest error of a force over the largest force, of the first structures."""
    images = ase.io.read(result, f":{CHECKED}")
    truth = TensorNetCalculator(device="cpu", dtype="float64", backend="exact")
    expected = truth.calculate_many([Atoms(a.numbers, a.positions) for a in images])
    pairs = [(a.get_forces(), e["forces"]) for a, e in zip(images, expected, strict=True)]
    largest = max(np.abs(forces).max() for _, forces in pairs)
    return float(max(np.abs(found - forces).max() for found, forces in pairs) / largest)


if __name__ == "__main__":
    main()
