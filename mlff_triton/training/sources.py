"""Files of labeled structures: extended XYZ and others that ASE reads, npz and HDF5."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mlff_triton._common.charges import is_open_shell
from mlff_triton._common.files import path_of
from mlff_triton._common.text import printable
from mlff_triton.errors import InputError
from mlff_triton.readers.elements import masses_of
from mlff_triton.readers.labeled import labeled_frames
from mlff_triton.training.arrays import HDF5, NPZ, array_tables
from mlff_triton.training.checks import BadFrameError, checked_frame
from mlff_triton.training.frames import Frames
from mlff_triton.training.labels import Labels, unread_charge
from mlff_triton.training.outliers import outliers
from mlff_triton.training.tables import checked_table

NO_SPIN = "a model knows no spin, so that all structures should have the same"
Checked = tuple[Frames | None, list[tuple[str, str]], Collection[str]]
"""Structures, names of bad ones with the reasons, and the labels that were found."""


def read_frames(
    files: Sequence[str | Path],
    labels: Labels,
    *,
    skip_bad: bool = False,
    may_lack: Collection[str] = (),
    say: Callable[[str], None] = lambda _: None,
) -> Frames:
    """Read and check labeled structures.

    Parameters
    ----------
    files : sequence of path
        Extended XYZ, a database of ASE or another format that ASE reads with results; ``.npz``;
        ``.h5`` or ``.hdf5``.
    labels : Labels
        Names and units of the labels in all files.
    skip_bad : bool
        If True, skip structures that cannot be trained on, and say why.
    may_lack : collection of str
        Labels that structures may lack although ``labels.keys`` names them.
    say : callable
        Called with a line about skipped structures.

    Raises
    ------
    InputError
        If a file cannot be read, if it has no structures, or if a structure cannot be trained on
        and ``skip_bad`` is False: it lacks forces, a label is NaN, or its energy differs from the
        others by an implausible amount. The line names the first of them. Also if no structure has
        a label of ``labels.keys``.
    """
    parts: list[Frames] = []
    bad: list[tuple[str, str]] = []
    present: set[str] = set(may_lack)
    for file in files:
        path = path_of(file)
        if not path.is_file():
            raise InputError(f"there is no file {printable(file)!r} of structures")
        is_array = path.suffix.lower() in (*NPZ, *HDF5)
        read = _checked_tables(path, labels) if is_array else _checked_frames(path, labels, say)
        for found, reasons, names in read:
            parts += [] if found is None else [found]
            bad += reasons
            present.update(names)
    total = sum(map(len, parts)) + len(bad)
    if not total:
        raise InputError(f"{printable(files[0])} contains no structures")
    if not skip_bad:
        _refuse(bad, total)
    _check_present(files, labels, present)
    frames = Frames.join(parts) if parts else None
    far = {} if frames is None else outliers(frames)
    bad += [] if frames is None else [(frames.name[k], reason) for k, reason in far.items()]
    if not skip_bad:
        _refuse(bad, total)
    if frames is None or len(far) == len(frames):
        name, reason = bad[0]
        raise InputError(f"all {total} structures are bad, the first: {name}: {reason}")
    if bad:
        name, reason = bad[0]
        say(f"leaves out {len(bad)} of {total} structures, the first: {name}: {reason}")
    return frames.select(np.delete(np.arange(len(frames)), list(far))) if far else frames


def with_dipoles_about_origin(frames: Frames) -> Frames:
    """Return structures, with dipoles about the origin instead of the centers of mass.

    Only dipoles of charged structures change. Calculators and ``mlff-triton predict`` give dipoles
    about the center of mass.
    """
    numbers = frames.numbers.tolist()
    masses = np.array(masses_of(numbers, [0] * len(numbers)))[:, None]
    first = frames.start[:-1]
    total = np.add.reduceat(masses, first)
    center = np.add.reduceat(masses * frames.positions, first) / total
    return replace(frames, dipole=frames.dipole + frames.charge[:, None] * center)


def _check_charge(charge: Any, values: Mapping[str, Any], labels: Labels) -> None:
    """Raise an error about the total charge of a structure, if another one may be meant."""
    if isinstance(charge, str) and "charge" not in values and "total_charge" not in values:
        raise BadFrameError(
            f"its total charge would be {charge}: give it, and name it with --key charge=NAME"
        )
    if np.size(charge) != 1:
        return  # refused later
    for name in labels.unread_charges(values):
        number = np.asarray(values[name])
        if number.dtype.kind in "iuf" and number.size == 1 and (number.ravel() != charge).any():
            raise BadFrameError(unread_charge(name, number.item()))


def _refuse(bad: Sequence[tuple[str, str]], total: int) -> None:
    """Raise an error about structures that cannot be trained on, if there are any."""
    if bad:
        name, reason = bad[0]
        number = "" if len(bad) == 1 else f"; {len(bad)} of {total} structures are bad"
        remedy = "" if len(bad) == total else ". --skip-bad leaves them out"
        raise InputError(f"{printable(name)}: {reason}{number}{remedy}")


def _check_present(files: Sequence[str | Path], labels: Labels, present: Collection[str]) -> None:
    """Raise an error if a label was given a name that no structure has."""
    for label, name in labels.keys.items():
        if label not in present:
            where = printable(files[0]) + (" or the other files" if len(files) > 1 else "")
            raise InputError(
                f"--key {label}={printable(name)} names what no structure of {where} has: correct "
                "the name, or leave the option out"
            )


def _checked_tables(path: Path, labels: Labels) -> Iterator[Checked]:
    """Yield the structures of each table in a file of arrays."""
    first = 0
    for table in array_tables(path, labels):
        names = [f"{path}, frame {k}" for k in range(first, first + len(table))]
        frames, bad = checked_table(table, labels, names)
        yield frames, [(names[k], reason) for k, reason in bad.items()], table.found
        first += len(table)


def _checked_frames(path: Path, labels: Labels, say: Callable[[str], None]) -> Iterator[Checked]:
    """Yield all structures of a file that ASE reads."""
    frames, bad, open_shells = [], [], []
    present: set[str] = set()
    for k, found in enumerate(labeled_frames(path)):
        name = f"{path}, frame {k}"
        try:
            if isinstance(found, str):
                raise BadFrameError(found)
            numbers, positions, cell, pbc, values = found
            own = {"numbers": numbers, "positions": positions, "cell": cell, "pbc": pbc}
            given = labels.find(values)
            present.update(given)
            given |= labels.charge_of_atoms(values)
            _check_charge(given.get("charge", 0), values, labels)
            open_shells += [f"{k} of {name}" for k, v in values.items() if is_open_shell(k, v)]
            chosen = {label: given[label] for label in labels.keys if label in given}
            key = {"forces_key": labels.key_of("forces", values)}
            frames.append(checked_frame(name, {**given, **own, **chosen, **key}, labels))
        except BadFrameError as error:
            bad.append((name, str(error)))
    if open_shells:
        count, first = len(open_shells), printable(open_shells[0])
        say(f"structures that are not singlets: {count}, the first by {first}; {NO_SPIN}")
    yield Frames.of(frames) if frames else None, bad, present
