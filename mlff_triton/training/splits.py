"""Division of structures into sets for training, validation and testing."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mlff_triton._common.text import short_repr
from mlff_triton.errors import InputError
from mlff_triton.training.frames import Array, Frames

KINDS = ("random", "group", "given")
NAMES = {"train": "train", "training": "train", "valid": "valid", "val": "valid"}
NAMES |= {"validation": "valid", "test": "test"}
"""Splits by the names that files give them."""
PRECISION = 1e-4
"""Å within which coordinates of one structure agree in files of different formats."""


class Split(NamedTuple):
    """Indices of structures, int64, ascending."""

    train: Array
    valid: Array
    test: Array


def split_frames(
    frames: Frames, kind: str, valid: float | int, test: float | int, seed: int
) -> Split:
    """Divide structures.

    Parameters
    ----------
    frames : Frames
        All structures.
    kind : {"random", "group", "given"}
        ``random`` draws structures and whole series, ``group`` draws whole groups, ``given``
        follows the file.
    valid, test : float or int
        Sizes: fractions below 1, or numbers of structures. Whole groups are drawn until the size is
        reached. ``given`` ignores them.
    seed : int
        Seed of the random order.

    Raises
    ------
    InputError
        If the kind is unknown, a size is impossible, there are too few groups, or the file gives
        another split than train, valid and test.
    """
    if kind not in KINDS:
        raise InputError(f"the split {short_repr(kind)} is unknown: use one of {', '.join(KINDS)}")
    if kind == "given":
        return _given(frames)
    wanted = [_size(size, len(frames)) for size in (valid, test)]
    return _drawn(frames, wanted, by_group=kind == "group", seed=seed)


def _size(size: float | int, total: int) -> int:
    """Return a number of structures; at least one for a fraction above 0."""
    if not 0 <= size < total or (size > 1 and size != int(size)):
        raise InputError(f"a part of {size:g} is impossible: there are {total} structures")
    return int(size) if size >= 1 else int(np.ceil(size * total))


def _given(frames: Frames) -> Split:
    unknown = [name for name in frames.split if name not in NAMES]
    if unknown:
        raise InputError(
            f"--split given needs a split of train, valid or test for each structure, not "
            f"{short_repr(unknown[0])}: name it with --key split=NAME"
        )
    splits = np.array([NAMES[name] for name in frames.split])
    return Split(*(np.flatnonzero(splits == name) for name in Split._fields))


def _drawn(frames: Frames, wanted: list[int], *, by_group: bool, seed: int) -> Split:
    """Draw structures or groups for validation, then for the test, and leave the others."""
    labels = frames.group.astype(str) if by_group else frames.unit
    units, members = np.unique(labels, return_inverse=True)
    if by_group and len(units) < 2 + (wanted[1] > 0):
        raise InputError(f"--split group needs more groups than {len(units)}: use --split random")
    sizes = np.bincount(members)
    parts = np.zeros(len(units), dtype=np.int64)
    order = iter(np.random.default_rng(seed).permutation(len(units)))
    for part, size in enumerate(wanted, 1):
        drawn = 0
        while drawn < size:
            unit = next(order, None)
            if unit is None:
                break
            parts[unit] = part
            drawn += int(sizes[unit])
    return Split(*(np.flatnonzero(parts[members] == part) for part in range(3)))


def count_repeated(frames: Frames, chosen: Array, trained: Array) -> int:
    """Count the structures of a part that also occur in the training set.

    Their elements, total charges and, up to `PRECISION`, positions and cells are equal.

    Parameters
    ----------
    frames : Frames
        All structures.
    chosen, trained : int64 [n]
        Indices of the structures of the part, and of the training set.
    """
    sizes = np.isin(frames.n_atoms[trained], frames.n_atoms[chosen])
    known = {_geometry(frames, k) for k in trained[sizes].tolist()}
    return sum(_geometry(frames, k) in known for k in chosen.tolist())


def _geometry(frames: Frames, k: int) -> tuple[bytes, ...]:
    atoms = slice(frames.start[k], frames.start[k + 1])
    rounded = [
        np.rint(array[i] / PRECISION) for array, i in ((frames.positions, atoms), (frames.cell, k))
    ]
    arrays = frames.numbers[atoms], *rounded, frames.pbc[k], frames.charge[k]
    return tuple((array + 0).tobytes() for array in arrays)  # without negative zeros
