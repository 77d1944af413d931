"""Runs of LAMMPS on all ranks of mpiexec, whose results `test_ranks` compares.

``python -m tests.calculators.lammps.worker OUT.npz [DEVICE BACKEND]``
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from mpi4py import MPI

from mlff_triton.calculators.lammps import couple
from mlff_triton.model.config import ZBLConfig
from mlff_triton.model.tensornet import TensorNet
from tests.calculators.lammps.systems import (
    OUTPUT,
    TYPES,
    cell_of,
    gathered,
    single_point,
    small_model,
    start,
    water,
)

WORLD = MPI.COMM_WORLD
Results = dict[str, Any]


def model_for(device: str, **changes: Any) -> TensorNet:
    """Return the model, with as many channels as kernels need, if it is for a GPU."""
    return small_model(8 if device == "cpu" else 32, **changes)


def static_cases(options: dict[str, str]) -> Iterator[tuple[str, Results]]:
    """Yield the results of single points in several boxes."""
    lines = f"processors {WORLD.size} 1 1"
    droplet = water((2, 2, 1))
    droplet.set_cell([40, 30, 30])
    cases = {
        "orthogonal": (water(), ()),
        "triclinic": (water((4, 2, 3), tilt=0.2), ()),
        "thin": (water((2, 2, 2)), (lines,)),
        "empty": (droplet, (lines,)),
        "tiny": (water((1, 1, 2)), ()),
        "tiled": (water(), ("comm_style tiled",)),
        "newton": (water(), ("newton off",)),
        "open": (droplet, (lines, "boundary f p s")),
    }
    for name, (atoms, commands) in cases.items():
        for dtype in ("float64", "float32") if name == "orthogonal" else ("float64",):
            lmp = start(atoms, *commands)
            couple(lmp, model_for(options["device"]), TYPES, dtype=dtype, **options)
            if name == "tiled":
                lmp.command("balance 0.9 rcb")
            lmp.commands_list(OUTPUT)
            yield f"{name}-{dtype}", single_point(lmp)
            n_own = WORLD.allgather(lmp.extract_setting("nlocal"))
            yield f"{name}-{dtype}", {"n_own": np.array(n_own)}
            lmp.close()


def moving_cases(options: dict[str, str]) -> Iterator[tuple[str, Results]]:
    """Yield trajectories at constant energy and pressure, and one in which the tilt flips.

    Atoms migrate in all of them.
    """
    cases = {
        "nve": (0.0, "fix move all nve"),
        "npt": (0.1, "fix move all npt temp 300 300 0.02 aniso 3000 3000 0.2"),
        "flip": (0.48, "fix move all nve\nfix shear all deform 1 xy erate 4 flip yes"),
    }
    for name, (tilt, motion) in cases.items():
        lmp = start(water((3, 3, 2), tilt))
        model = model_for(options["device"], zbl=ZBLConfig(1.5, 14.4))  # atoms must not meet
        couple(lmp, model, TYPES, dtype="float64", **options)
        lmp.commands_list(
            [*OUTPUT, *motion.split("\n"), "timestep 0.0004", "velocity all create 300 7 loop geom"]
        )
        owners = np.zeros((2, 54), dtype=int)
        rows, cells = [], [cell_of(lmp)]
        for k in range(5):
            if k == 4 and name == "flip":
                lmp.command("unfix shear")  # as the box would change after the last forces
            lmp.command("run 10 post no" if k else "run 0 post no")
            rows.append([lmp.get_thermo(key) for key in ("pe", "etotal", "vol")])
            if k in (0, 4):
                tags = lmp.numpy.extract_atom("id")[: lmp.extract_setting("nlocal")]
                owners[k // 4, tags - 1] = WORLD.rank
        owners = WORLD.allreduce(owners)
        yield (
            name,
            {
                "thermo": np.array(rows),
                "positions": gathered(lmp, "x", 3),
                "forces": gathered(lmp, "f", 3),
                "cells": np.array([*cells, cell_of(lmp)]),
                "migrated": (owners[0] != owners[1]).sum(),
            },
        )
        lmp.close()


def all_results(device: str, backend: str) -> Results:
    """Run all cases."""
    options, found = {"device": device, "backend": backend}, {}
    for name, results in static_cases(options):
        found |= {f"{name}/{key}": value for key, value in results.items()}
    for name, results in moving_cases(options):
        found |= {f"{name}/{key}": value for key, value in results.items()}
    return found


def main(out: str, device: str = "cpu", backend: str = "cpu") -> None:
    """Run all cases, and save their results."""
    found = all_results(device, backend)
    if WORLD.rank == 0:
        np.savez(out, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
