"""Files of labeled structures: extended XYZ and others that ASE reads, npz and HDF5."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from mlff_triton._common.files import path_of
from mlff_triton._common.text import printable
from mlff_triton.errors import InputError
from mlff_triton.readers.labeled import labeled_frames
from mlff_triton.training.arrays import HDF5, NPZ, array_frames
from mlff_triton.training.checks import BadFrameError, checked_frame
from mlff_triton.training.frames import Frame, Frames
from mlff_triton.training.labels import Labels
from mlff_triton.training.outliers import outliers


def read_frames(
    files: Sequence[str | Path],
    labels: Labels,
    *,
    skip_bad: bool = False,
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
        If True, leave out structures that cannot be trained on, and say why.
    say : callable
        Called with a line about structures that are left out.

    Raises
    ------
    InputError
        If a file cannot be read, if it has no structures, or if a structure cannot be trained on
        and ``skip_bad`` is False: it lacks forces, a label is NaN, or its energy differs from
        those of the others by more than is sane. The line names the first of them.
    """
    frames: list[Frame] = []
    bad: list[tuple[str, str]] = []
    for file in files:
        path = path_of(file)
        if not path.is_file():
            raise InputError(f"there is no file {printable(file)!r} of structures")
        for k, found in enumerate(_labels_of(path, labels)):
            name = f"{path}, frame {k}"
            try:
                frames.append(_frame(name, found, labels))
            except BadFrameError as error:
                bad.append((name, str(error)))
    total = len(frames) + len(bad)
    if not total:
        raise InputError(f"{printable(files[0])} contains no structures")
    if not skip_bad:
        _refuse(bad, total)
    far = outliers(Frames.of(frames)) if frames else {}
    bad += [(frames[k].name, reason) for k, reason in far.items()]
    if not skip_bad:
        _refuse(bad, total)
    kept = [frame for k, frame in enumerate(frames) if k not in far]
    if bad:
        name, reason = bad[0]
        if not kept:
            raise InputError(f"all {total} structures are bad, the first: {name}: {reason}")
        say(f"leaves out {len(bad)} of {total} structures, the first: {name}: {reason}")
    return Frames.of(kept)


def _refuse(bad: Sequence[tuple[str, str]], total: int) -> None:
    """Raise an error about structures that cannot be trained on, if there are any."""
    if bad:
        name, reason = bad[0]
        number = "" if len(bad) == 1 else f"; {len(bad)} of {total} structures are bad"
        raise InputError(f"{printable(name)}: {reason}{number}. --skip-bad leaves them out")


def _labels_of(path: Path, labels: Labels) -> Iterator[dict[str, Any] | str]:
    """Yield what a file says about each structure, or why it cannot be read."""
    if path.suffix.lower() in (*NPZ, *HDF5):
        yield from array_frames(path, labels)
        return
    for found in labeled_frames(path):
        if isinstance(found, str):
            yield found
            continue
        numbers, positions, cell, pbc, values = found
        own = {"numbers": numbers, "positions": positions, "cell": cell, "pbc": pbc}
        yield {**labels.find(values), **own}


def _frame(name: str, found: dict[str, Any] | str, labels: Labels) -> Frame:
    if isinstance(found, str):
        raise BadFrameError(found)
    return checked_frame(name, found, labels)
