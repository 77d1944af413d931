"""Restart files: everything that the rest of a run depends on, as ``.npz`` without pickle.

A digest of the contents reveals any later modification.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
import zlib
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms
from ase.constraints import FixAtoms

from mlff_triton._common.files import find_file, replace_file
from mlff_triton._common.text import short_repr
from mlff_triton.calculators._fixed_atoms import fixed_atoms
from mlff_triton.dynamics.bonds import Bonds
from mlff_triton.dynamics.conditions import check_ensembles
from mlff_triton.dynamics.preparation import Minimization
from mlff_triton.dynamics.settings import Settings
from mlff_triton.dynamics.stages import Stage
from mlff_triton.dynamics.trajectories.comment import to_json
from mlff_triton.dynamics.trajectories.frame import LABELS, labels_of
from mlff_triton.engine.motion import State
from mlff_triton.errors import InputError

FORMAT = "mlff_triton.dynamics.3"
READABLE = (FORMAT, "mlff_triton.dynamics.2")  # without fixed atoms and stiffness
STATE = ("positions", "velocities", "cell", "heat", "work")  # fields of `State`, in order

# Raised for damaged or foreign files by NumPy, zipfile, json, or while reading their contents.
UNREADABLE = (
    AttributeError,
    EOFError,
    KeyError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    zipfile.BadZipFile,
    zlib.error,
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
    systems : list of Atoms
        Elements, periodicity, masses, fixed atoms, total charge, labels and other information of
        each replica.
    state : State
        Step, positions, velocities, cells, and exchanged heat and work.
    temperatures : tuple of float
        Current temperature of each replica in K.
    stiffness : tuple of float
        Stiffness of each replica at the start of an npt stage, eV/Å^3; empty if unknown.
    is_prepared : bool
        True once minimization and initial velocities are done.
    minimization : Minimization or None
        Result of the minimization, if there was one.
    bonds : Bonds or None
        Covalent bonds at the start, once it is prepared.
    exchanges : tuple of (int, int)
        Attempts to exchange temperatures, and exchanges, of each pair of neighbors in the ladder.
    sizes : dict of int
        Lengths in bytes of trajectories and logs, by file name.
    lasting_sizes : dict of int
        Lengths without a last frame and row that are only written because the run ends there.
    """

    settings: Settings
    recipe: dict[str, str]
    systems: list[Atoms]
    state: State
    temperatures: tuple[float, ...]
    stiffness: tuple[float, ...] = ()
    is_prepared: bool = False
    minimization: Minimization | None = None
    bonds: Bonds | None = None
    exchanges: tuple[tuple[int, int], ...] = ()
    sizes: dict[str, int] = field(default_factory=dict)
    lasting_sizes: dict[str, int] = field(default_factory=dict)

    def extended(self, steps: int) -> Snapshot:
        """Return the snapshot of a run whose last stage is longer by a number of steps.

        Its continuation equals a run that was planned to be that long.

        Raises
        ------
        InputError
            If the number is less than one, or the run heats up in its only stage, because a longer
            stage would heat more slowly.
        """
        settings = self.settings
        if steps < 1:
            raise InputError(f"a run is extended by at least one step, not {steps}")
        if settings.heat_from is not None and len(settings.stages) == 1:
            raise InputError(
                "a run that heats up in its last stage cannot be extended: start a new run from "
                "its last frame"
            )
        return replace(self, settings=settings.extended(steps), sizes=self.lasting_sizes)

    def continued(self, *stages: Stage) -> Snapshot:
        """Return the snapshot of a run that continues with further stages after the planned ones.

        Its continuation equals a run that was planned with all stages.

        Raises
        ------
        InputError
            If the systems do not suit the stages.
        """
        settings = replace(self.settings, stages=(*self.settings.stages, *stages))
        check_ensembles(self.systems, settings)
        return replace(self, settings=settings)


def save_restart(snapshot: Snapshot, path: Path) -> None:
    """Write a snapshot to a restart file, completely or not at all.

    Raises
    ------
    OutputError
        If the file cannot be written.
    """
    state, systems, minimization = snapshot.state, snapshot.systems, snapshot.minimization
    rest = {
        "format": FORMAT,
        "settings": snapshot.settings.to_dict(),
        "recipe": snapshot.recipe,
        "charges": [np.asarray(atoms.info.get("charge")).item() for atoms in systems],
        "info": [
            {str(key): json.loads(to_json(value)) for key, value in atoms.info.items()}
            for atoms in systems
        ],
        "labels": [list(labels_of(atoms)) for atoms in systems],
        "step": state.step,
        "temperatures": snapshot.temperatures,
        "stiffness": snapshot.stiffness,
        "is_prepared": snapshot.is_prepared,
        "minimization": None if minimization is None else asdict(minimization),
        "exchanges": snapshot.exchanges,
        "sizes": snapshot.sizes,
        "lasting_sizes": snapshot.lasting_sizes,
    }
    arrays = {name: getattr(state, name) for name in STATE}
    arrays |= {
        "counts": np.array([len(atoms) for atoms in systems]),
        "numbers": np.concatenate([atoms.numbers for atoms in systems]),
        "pbc": np.stack([atoms.pbc for atoms in systems]),
        "rest": np.array(json.dumps(rest)),  # JSON preserves floats exactly
    }
    fixed = np.concatenate([fixed_atoms(atoms) for atoms in systems])
    if fixed.any():
        arrays["fixed"] = fixed
    if any(atoms.has("masses") for atoms in systems):
        arrays["masses"] = np.concatenate([atoms.get_masses() for atoms in systems])
    for name in LABELS:
        labels = [atoms.arrays[name] for atoms in systems if name in atoms.arrays]
        if labels:
            arrays[name] = np.concatenate(labels)
    if snapshot.bonds is not None:
        arrays |= {f"bond_{name}": array for name, array in snapshot.bonds._asdict().items()}
    arrays["digest"] = np.array(_digest(arrays))
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
        If the file is missing, damaged, modified, or not a restart file.
    """
    file = find_file(path)
    if file is None:
        raise InputError(f"there is no restart file {str(path)!r}: give the restart.npz of a run")
    try:
        with np.load(io.BytesIO(file.read_bytes()), allow_pickle=False) as archive:
            arrays = dict(archive)
            rest = json.loads(str(arrays["rest"]))
            if rest["format"] not in READABLE:
                raise InputError(
                    f"{file} has format {short_repr(rest['format'])}, expected {FORMAT!r}: "
                    "continue the run with the version of mlff_triton that wrote it"
                )
            if str(arrays.pop("digest")) != _digest(arrays):
                raise InputError(
                    f"{file} was modified after a run wrote it: restore the original, or start a "
                    "new run with other settings"
                )
            return _snapshot(arrays, rest)
    except InputError:
        raise
    except UNREADABLE as error:
        raise InputError(
            f"{file} is not a valid restart file of mlff-triton md: start a new run"
        ) from error


def _digest(arrays: dict[str, np.ndarray]) -> str:
    """Return the SHA-256 of names, types, shapes and values of arrays."""
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape};".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _snapshot(arrays: dict[str, np.ndarray], rest: dict[str, Any]) -> Snapshot:
    state = State(int(rest["step"]), *(arrays[name] for name in STATE))
    systems, start = [], 0
    remaining = {name: arrays[name] for name in LABELS if name in arrays}
    infos = rest.get("info", [{}] * len(arrays["counts"]))
    per_system = rest["charges"], infos, rest["labels"]
    for count, pbc, cell, charge, info, labels in zip(
        arrays["counts"], arrays["pbc"], state.cell, *per_system, strict=True
    ):
        part = slice(start, start + int(count))
        masses = arrays["masses"][part] if "masses" in arrays else None
        atoms = Atoms(arrays["numbers"][part], state.positions[part], masses=masses, pbc=pbc)
        atoms.cell.array[pbc] = cell[pbc]
        atoms.set_velocities(state.velocities[part])
        if "fixed" in arrays and arrays["fixed"][part].any():
            atoms.set_constraint(FixAtoms(mask=arrays["fixed"][part]))
        atoms.info |= info
        if charge is not None:
            atoms.info["charge"] = charge
        for name in labels:
            own, remaining[name] = np.split(remaining[name], [int(count)])
            atoms.set_array(name, own)
        systems.append(atoms)
        start = part.stop
    minimization = rest["minimization"]
    has_bonds = "bond_pairs" in arrays
    return Snapshot(
        settings=Settings.from_dict(rest["settings"]),
        recipe=rest["recipe"],
        systems=systems,
        state=state,
        temperatures=tuple(rest["temperatures"]),
        stiffness=tuple(rest.get("stiffness", [])),
        is_prepared=rest["is_prepared"],
        minimization=None if minimization is None else Minimization(**minimization),
        bonds=Bonds(*(arrays[f"bond_{x}"] for x in Bonds._fields)) if has_bonds else None,
        exchanges=tuple((tried, done) for tried, done in rest.get("exchanges", [])),
        sizes=rest["sizes"],
        lasting_sizes=rest["lasting_sizes"],
    )
