"""A run in which one rank fails: ``python -m tests.calculators.lammps.failing_worker WHEN``."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

from mpi4py import MPI

from mlff_triton.calculators.lammps import couple
from mlff_triton.engine.engine import Engine
from mlff_triton.errors import (
    BackendError,
    DeviceMemoryError,
    MlffTritonError,
    OverlappingAtomsError,
)
from mlff_triton.model.tensornet import TensorNet
from tests.calculators.lammps.systems import TYPES, charged, small_model, start, water

LAST = MPI.COMM_WORLD.rank == MPI.COMM_WORLD.size - 1
NOTE = Path("fails")
"""A file that the rank touches just before it fails."""


def couple_or_write(what: str, lmp: Any, model: TensorNet, **options: Any) -> None:
    """Couple, or write the error to a file of this rank, as output of several ranks mixes."""
    try:
        couple(lmp, model, TYPES, device="cpu", **options)
    except MlffTritonError as error:
        Path(f"{what}-{MPI.COMM_WORLD.rank}.txt").write_text(str(error))


def fail_to_couple() -> None:
    """Let the set-up fail on the last rank, or differ there, one reason after another."""
    lmp, model = start(water()), small_model()
    failure = mock.patch.object(Engine, "part", side_effect=BackendError("no memory here"))
    with failure if LAST else nullcontext():
        couple_or_write("set-up", lmp, model)
    couple_or_write("dtype", lmp, model, dtype="float64" if LAST else "float32")
    model.std *= 1.5 if LAST else 1.0
    couple_or_write("model", lmp, model)
    NOTE.touch()
    couple(lmp, model, TYPES, device="cpu")


def main(when: str) -> None:
    """Let the last rank fail during the set-up, in a step, or between LAMMPS and the model."""
    if when == "set-up":
        fail_to_couple()
    lmp = start(water())
    final = charged() if when == "sum" else small_model()
    coupling = couple(lmp, final, TYPES, device="cpu")
    lmp.commands_list(["fix move all nve", "timestep 0.0005", "run 3"])
    if LAST:
        NOTE.touch()
    if LAST and when == "step":
        coupling._part.step = mock.Mock(side_effect=OverlappingAtomsError("atoms coincide"))
    elif LAST and when == "pass on":
        coupling._pass_on = mock.Mock(side_effect=RuntimeError("a bug"))
    elif LAST and when == "exit":
        coupling._part.step = mock.Mock(side_effect=SystemExit("gone"))
    elif LAST and when == "exchange":
        assert coupling._exchange is not None
        coupling._exchange.trade = mock.Mock(side_effect=DeviceMemoryError("no memory"))
    elif LAST and when == "sum":  # while others wait for it
        assert coupling._exchange is not None
        coupling._exchange.gather = mock.Mock(side_effect=DeviceMemoryError("no memory"))
    elif LAST and when == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    lmp.command("run 100000")


if __name__ == "__main__":
    main(*sys.argv[1:])
