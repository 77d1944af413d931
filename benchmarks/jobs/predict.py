"""Time of ``mlff-triton predict`` for many structures on one device and on several.

Usage: ``python -m benchmarks.jobs.predict --devices cuda:0 cuda:0,cuda:1``. Each run is a process
of its own on one of these lists of devices. Its wall time counts, from start to end. Molecules are
distorted copies of eight with 3 to 14 atoms, and boxes (``--kind boxes``) those of 384 atoms of
water. The gate compares the first results with the exact module in float64, if they are extended
XYZ. Rows go to ``predict.csv``: ``atoms`` counts all atoms, and the case names the number of
structures and the format.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
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
from mlff_triton.testing import water_box

BENCH = "predict"
NAMES = ("H2O", "CH3OH", "CH3CH2OH", "C6H6", "CH3COOH", "CH3CONH2", "C4H4NH", "trans-butane")
NOISE = 0.03  # Å
WATER = 128  # molecules per box
CHECKED = 1000  # atoms, about
BLOCK = 10_000  # different molecules, or as many atoms in boxes


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all lists of devices, and write their rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--structures", type=int, default=1_000_000)
    parser.add_argument("--kind", choices=KINDS, default="molecules", help="%(choices)s")
    parser.add_argument("--devices", nargs="+", default=["cuda:0"], help="as in --device")
    parser.add_argument("--workers", type=int, help="per device; default: those of the command")
    parser.add_argument("--folder", type=Path, help="folder of the structures and results")
    parser.add_argument("--suffix", default="xyz", help="xyz, parquet or h5")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the CSV file")
    options = parser.parse_args(arguments)
    device = torch.device(options.devices[0].partition(",")[0])
    make, size = KINDS[options.kind]
    lab = Lab(device, environment(device), Results(options.out))
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        source = Path(folder) / "structures.xyz"
        n_atoms = write(source, options.structures, distorted(make()), BLOCK // size)
        for devices in options.devices:
            count = len(devices.split(","))
            workers = options.workers and count * options.workers
            result = Path(folder) / f"results.{options.suffix}"
            seconds = run(source, result, devices, workers)
            error = None
            if options.suffix == "xyz":
                error = largest_error(ase.io.read(result, f":{max(1, CHECKED // size)}"))
            is_right = error is None or error <= OUR_TOLERANCE
            timing = Timing(*(3 * [1e3 * seconds]), None) if is_right else None
            name = f"{options.structures}-{options.kind}-{options.suffix}"
            impl = name_of(devices) + (f"-workers-{workers}" if workers else "")
            lab.report(make_row(BENCH, name, impl, (n_atoms, 0), lab.where, timing, error))
            print(f"{devices}: {options.structures / seconds:.0f}/s")


def name_of(devices: str) -> str:
    """Return the name of an implementation on some devices, such as "gpus-2"."""
    kind = "gpus" if devices.startswith("cuda") else "cpus"
    return f"{kind}-{len(devices.split(','))}"


def molecules() -> list[Atoms]:
    """Return small molecules."""
    return [molecule(name) for name in NAMES]


def boxes() -> list[Atoms]:
    """Return a box of water."""
    return [water_box(WATER)]


KINDS: dict[str, tuple[Callable[[], list[Atoms]], int]] = {
    "molecules": (molecules, 1),
    "boxes": (boxes, 3 * WATER),
}
"""Structures that are distorted, and atoms of each that count as a structure of a block."""


def distorted(known: Sequence[Atoms]) -> Iterator[Atoms]:
    """Yield distorted structures without end."""
    draw = np.random.default_rng(0)
    while True:
        atoms = known[draw.integers(len(known))].copy()
        atoms.positions += draw.normal(0, NOISE, atoms.positions.shape)
        yield atoms


def write(path: Path, count: int, structures: Iterator[Atoms], length: int) -> int:
    """Write structures to a file, the same ones in each block; return the number of all atoms."""
    images = list(islice(structures, min(length, count)))
    rest = images[: count % length] if count > length else []
    block, end = map(extended_xyz, (images, rest))
    n_blocks = max(1, count // length)
    with path.open("wb") as file:
        for _ in range(n_blocks):
            file.write(block)
        file.write(end)
    return n_blocks * sum(map(len, images)) + sum(map(len, rest))


def run(source: Path, result: Path, devices: str, workers: int | None) -> float:
    """Run the command on some devices, and return its wall time in s."""
    command = [sys.executable, "-m", "benchmarks.jobs.command", "predict", str(source)]
    command += ["--out", str(result), "--device", devices, "--overwrite"]
    command += ["--workers", str(workers)] if workers else []
    began = time.perf_counter()
    subprocess.run(command, cwd=CHECKOUT, check=True)  # noqa: S603 - the command is ours
    return time.perf_counter() - began


def largest_error(images: Sequence[Atoms]) -> float:
    """Return the largest error of a force over the largest force, of structures with results."""
    truth = TensorNetCalculator(device="cpu", dtype="float64", backend="exact")
    bare = [Atoms(a.numbers, a.positions, cell=a.cell, pbc=a.pbc) for a in images]
    expected = truth.calculate_many(bare)
    pairs = [(a.get_forces(), e["forces"]) for a, e in zip(images, expected, strict=True)]
    largest = max(np.abs(forces).max() for _, forces in pairs)
    return float(max(np.abs(found - forces).max() for found, forces in pairs) / largest)


if __name__ == "__main__":
    main()
