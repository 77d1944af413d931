"""Structures per second that one process of ``mlff-triton predict`` reads, screens and writes.

Usage: ``python -m benchmarks.jobs.feeding``. Nothing is computed: energies are zero and forces are
random. The rate is that of the process by the time that it runs on a core, so that other programs
matter little. A GPU that computes more structures per second needs several processes.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import torch

from benchmarks.jobs.predict import BLOCK, KINDS, distorted, write
from mlff_triton import Engine, Prediction, predict_files
from mlff_triton.engine.batch import Batch


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the rate."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--structures", type=int, default=20_000)
    parser.add_argument("--kind", choices=KINDS, default="molecules", help="%(choices)s")
    parser.add_argument("--suffix", default="xyz", help="xyz, parquet or h5")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    make, size = KINDS[options.kind]
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(Engine, "evaluate", _nothing):
        source = Path(folder) / "structures.xyz"
        write(source, options.structures, distorted(make()), BLOCK // size)
        for _ in range(options.repeats):
            began = time.process_time()
            out = Path(folder) / f"out.{options.suffix}"
            predict_files(source, out, device="cpu", overwrite=True)
            seconds = time.process_time() - began
            print(f"{options.kind}, {options.suffix}: {options.structures / seconds:.0f}/s")


def _nothing(engine: Engine, batch: Batch) -> Prediction:
    """Return results without computing any."""
    del engine
    n_atoms, n_systems = len(batch.numbers), len(batch.boxes)
    return Prediction(
        energy=torch.zeros(n_systems, dtype=torch.float64),
        forces=torch.randn(n_atoms, 3),
        virial=torch.zeros(n_systems, 3, 3, dtype=torch.float64),
        atom_energies=torch.zeros(n_atoms, dtype=torch.float64),
    )


if __name__ == "__main__":
    main()
