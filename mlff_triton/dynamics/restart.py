"""Restart files: everything that the rest of a run depends on, as ``.npz`` without pickle."""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms

from mlff_triton._common.files import replace_file
from mlff_triton.dynamics.integrators import State
from mlff_triton.dynamics.preparation import Minimization
from mlff_triton.dynamics.settings import Settings
from mlff_triton.errors import InputError

FORMAT = "mlff_triton.md.1"

# Raised for damaged or foreign files by NumPy, zipfile, json, or while reading their contents.
UNREADABLE = (
    AttributeError,
    EOFError,
    KeyError,
    OSError,
    TypeError,
    ValueError,
    zipfile.BadZipFile,
)


@dataclass(frozen=True)
class Snapshot:
    """The complete state of a run.

    Attributes
    ----------
    settings : Settings
        Stages and conditions.
    recipe : dict of str
        The caller's own record of how to make the calculator; not interpreted here.
    atoms : Atoms
        Positions, momenta, cell, masses and total charge.
    step : int
        Number of time steps done.
    is_prepared : bool
        True once minimization and initial velocities are done.
    minimization : Minimization or None
        Result of the minimization, if there was one.
    random_state : dict
        State of the random bit generator.
    integrator_state : dict
        State of the integrator of the current stage; empty at the start of a stage.
    sizes : dict of int
        Lengths in bytes of the trajectory and the log, by file name.
    """

    settings: Settings
    recipe: dict[str, str]
    atoms: Atoms
    step: int
    is_prepared: bool
    minimization: Minimization | None
    random_state: dict[str, Any]
    integrator_state: State
    sizes: dict[str, int]


def save_restart(snapshot: Snapshot, path: Path) -> None:
    """Write a snapshot to a restart file, completely or not at all.

    Raises
    ------
    OutputError
        If the file cannot be written.
    """
    atoms = snapshot.atoms
    minimization = snapshot.minimization
    rest = {
        "format": FORMAT,
        "settings": snapshot.settings.to_dict(),
        "recipe": snapshot.recipe,
        "charge": np.asarray(atoms.info.get("charge")).item(),
        "step": snapshot.step,
        "is_prepared": snapshot.is_prepared,
        "minimization": None if minimization is None else asdict(minimization),
        "random_state": snapshot.random_state,
        "integrator_state": snapshot.integrator_state,
        "sizes": snapshot.sizes,
    }
    arrays = {
        "numbers": atoms.numbers,
        "positions": atoms.positions,
        "momenta": atoms.get_momenta(),
        "cell": atoms.cell.array,
        "pbc": atoms.pbc,
        "rest": np.array(json.dumps(rest)),  # JSON preserves floats exactly
    }
    if atoms.has("masses"):
        arrays["masses"] = atoms.get_masses()
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, **arrays)
    replace_file(path, content.getvalue())


def load_restart(path: str | Path) -> Snapshot:
    """Read a restart file.

    Parameters
    ----------
    path : str or path
        A file written by a `Simulation`.

    Returns
    -------
    Snapshot

    Raises
    ------
    InputError
        If the file is missing, damaged, or not a restart file.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise InputError(f"there is no restart file {str(path)!r}: give the restart.npz of a run")
    try:
        with np.load(io.BytesIO(file.read_bytes()), allow_pickle=False) as arrays:
            rest = json.loads(str(arrays["rest"]))
            if rest["format"] != FORMAT:
                raise InputError(
                    f"{file} has format {rest['format']!r}, expected {FORMAT!r}: continue the run "
                    "with the version of mlff_triton that wrote it"
                )
            return _snapshot(arrays, rest)
    except InputError:
        raise
    except UNREADABLE as error:
        raise InputError(
            f"{file} is not a valid restart file of mlff-triton md: start a new run"
        ) from error


def _snapshot(arrays: np.lib.npyio.NpzFile, rest: dict[str, Any]) -> Snapshot:
    atoms = Atoms(
        numbers=arrays["numbers"],
        positions=arrays["positions"],
        masses=arrays.get("masses"),
        cell=arrays["cell"],
        pbc=arrays["pbc"],
    )
    atoms.set_momenta(arrays["momenta"])
    if rest["charge"] is not None:
        atoms.info["charge"] = rest["charge"]
    minimization = rest["minimization"]
    return Snapshot(
        settings=Settings.from_dict(rest["settings"]),
        recipe=rest["recipe"],
        atoms=atoms,
        step=rest["step"],
        is_prepared=rest["is_prepared"],
        minimization=None if minimization is None else Minimization(**minimization),
        random_state=rest["random_state"],
        integrator_state=rest["integrator_state"],
        sizes=rest["sizes"],
    )
