"""Runs of LAMMPS with a TensorNet2 on all ranks of mpiexec, whose results `test_charged` compares.

``python -m tests.calculators.lammps.charged_worker OUT.npz BACKEND [DEVICE]``
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from ase import Atoms
from mpi4py import MPI

from mlff_triton.calculators.lammps import Coupling, couple
from mlff_triton.model.tensornet2 import TensorNet2
from tests.calculators.lammps.systems import (
    OUTPUT,
    TYPES,
    charged,
    gathered,
    single_point,
    start,
    water,
)

WORLD = MPI.COMM_WORLD
CHARGE = 1
NPT = "fix move all npt temp 300 300 0.02 aniso 3000 3000 0.2"


def droplets(*, periodic: bool) -> Atoms:
    """Return molecules near both ends of a long box, without any in between."""
    one, other = water((2, 2, 1)), water((1, 2, 1))
    other.positions += [32, 0, 0]
    both = one + other
    both.set_cell([40, 30, 30])
    both.pbc = periodic
    return both


def channels_for(device: str) -> int:
    """Return the channels of models, as many as kernels need on a GPU."""
    return 6 if device == "cpu" else 32


def layer() -> Atoms:
    """Return a slab of water, whose height in the box of LAMMPS does not matter."""
    atoms = water((4, 3, 2))
    atoms.positions += [0, 0, 3]
    atoms.cell[2, 2] += 8
    atoms.pbc = [True, True, False]
    return atoms


def structures(device: str = "cpu") -> dict[str, tuple[Atoms, TensorNet2]]:
    """Return boxes and the model for each; GPUs need a Coulomb cutoff, and have no meshes."""
    cutoffs: dict[str, tuple[Atoms, float | None]] = {
        "orthogonal": (water(), 4.0),
        "triclinic": (water((4, 3, 3), tilt=0.1), 4.0),
        "long": (water((8, 3, 3)), 4.0),
        "droplets": (droplets(periodic=True), 4.0),
        "open": (droplets(periodic=False), None),
        "open, with a cutoff": (droplets(periodic=False), 4.0),
    }
    meshes = {
        "mesh": (water(), 1e-4),
        "mesh, triclinic": (water((4, 3, 3), tilt=0.1), 1e-3),
        "mesh, droplets": (droplets(periodic=True), 1e-2),
        "mesh, slab": (layer(), 1e-3),
    }
    channels = channels_for(device)
    found = {
        name: (atoms, charged(cutoff, channels))
        for name, (atoms, cutoff) in cutoffs.items()
        if device == "cpu" or cutoff
    }
    if device == "cpu":
        found |= {name: (box, charged(4.6, 6, error)) for name, (box, error) in meshes.items()}
    return found


def all_results(backend: str, device: str = "cpu") -> dict[str, Any]:
    """Run all cases."""
    found, options = {}, {"device": device, "charge": CHARGE, "backend": backend}
    for name, (atoms, model) in structures(device).items():
        commands = [f"processors {WORLD.size} 1 1"] if atoms.cell[0, 0] == 40 else []
        commands.append("boundary " + " ".join("p" if periodic else "f" for periodic in atoms.pbc))
        for dtype in ("float64", "float32") if name == "orthogonal" else ("float64",):
            lmp = start(atoms, *commands)
            coupling = couple(lmp, model, TYPES, dtype=dtype, **options)
            lmp.commands_list(OUTPUT)
            results = single_point(lmp)
            results["n_own"] = np.array(WORLD.allgather(lmp.extract_setting("nlocal")))
            results["n_far"] = np.array(WORLD.allreduce(far_rows(coupling)))
            found |= {f"{name}-{dtype}/{key}": value for key, value in results.items()}
            lmp.close()
    tilted, channels = water((4, 3, 3), tilt=0.1), channels_for(device)
    cases = {
        "cubic": (water(), charged(4.0, channels), "fix move all nve"),
        "tilted": (tilted, charged(4.0, channels), "fix move all nve"),
        "mesh, tilted": (tilted, charged(4.6, channels, 1e-3), "fix move all nve"),
        "mesh, npt": (water(), charged(4.6, channels, 1e-3), NPT),
    }
    for name, case in cases.items():
        if device != "cpu" and case[1].uses_mesh:
            continue
        found |= {f"{name}/{key}": value for key, value in moving(*case, options).items()}
    return found


def far_rows(coupling: Coupling) -> int:
    """Return the number of atoms of other ranks whose tensors the network does not need."""
    exchange = coupling._exchange
    return 0 if exchange is None else exchange.n_rows - exchange.n_near


def moving(atoms: Atoms, model: TensorNet2, fix: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return a trajectory in which atoms migrate."""
    lmp = start(atoms)
    couple(lmp, model, TYPES, dtype="float64", **options)
    motion = fix, "timestep 0.0004", "velocity all create 300 7 loop geom"
    lmp.commands_list([*OUTPUT, *motion])
    owners, rows = np.zeros((2, len(atoms)), dtype=int), []
    for k in range(4):
        lmp.command("run 10 post no" if k else "run 0 post no")
        rows.append([lmp.get_thermo(key) for key in ("pe", "etotal")])
        if k in (0, 3):
            tags = lmp.numpy.extract_atom("id")[: lmp.extract_setting("nlocal")]
            owners[k // 3, tags - 1] = WORLD.rank
    owners = WORLD.allreduce(owners)
    results = {
        "thermo": np.array(rows),
        "positions": gathered(lmp, "x", 3),
        "forces": gathered(lmp, "f", 3),
        "migrated": (owners[0] != owners[1]).sum(),
    }
    lmp.close()
    return results


def main(out: str, backend: str, device: str = "cpu") -> None:
    """Run all cases, and save their results."""
    found = all_results(backend, device)
    if WORLD.rank == 0:
        np.savez(out, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
