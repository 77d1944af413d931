"""Checks of many structures at once, whose arrays would take long one by one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mlff_triton._common.text import one_line
from mlff_triton.training.arrays import Table
from mlff_triton.training.checks import (
    CHARGE_TOLERANCE,
    MAX_FORCE,
    VOIGT,
    BadFrameError,
    are_elements,
    checked_frame,
)
from mlff_triton.training.frames import Array, Frame, Frames, formula
from mlff_triton.training.labels import Labels

REQUIRED = {"numbers", "positions", "cell", "pbc", "energy", "forces"}
SHAPES: dict[str, tuple[tuple[int, ...], ...]] = {
    "numbers": ((),),
    "positions": ((3,),),
    "forces": ((3,),),
    "energy": ((),),
    "charge": ((),),
    "weight": ((),),
    "cell": ((3, 3),),
    "pbc": ((3,),),
    "stress": ((3, 3), (6,), (9,)),
    "charges": ((),),
    "dipole": ((3,),),
}
"""Shapes that the rows of arrays of numbers may have."""


def checked_table(
    table: Table, labels: Labels, names: Sequence[str]
) -> tuple[Frames | None, dict[int, str]]:
    """Return the structures of a table, and the reasons by the indices of those that are bad.

    The results are those of `checked_frame`, which says what is wrong with a structure.

    Parameters
    ----------
    table : Table
        The structures.
    labels : Labels
        Their units.
    names : sequence of str
        Names of the structures for messages.
    """
    frames = _frames(table, labels, names) if _is_regular(table) else None
    doubtful = (
        np.arange(len(table))
        if frames is None
        else np.flatnonzero(~_are_sane(frames, "stress" in table.arrays))
    )
    found = {k: _one(table, labels, names[k], k) for k in doubtful.tolist()}
    bad = {k: frame for k, frame in found.items() if isinstance(frame, str)}
    if frames is None:
        passed = [frame for frame in found.values() if not isinstance(frame, str)]
        return Frames.of(passed) if passed else None, bad
    if not bad:
        return frames, bad
    good = np.delete(np.arange(len(table)), list(bad))
    return frames.select(good) if len(good) else None, bad


def _one(table: Table, labels: Labels, name: str, k: int) -> Frame | str:
    """Return a structure of a table, or the reason why it is bad."""
    try:
        return checked_frame(name, table.frame(k), labels)
    except BadFrameError as error:
        return str(error)


def _is_regular(table: Table) -> bool:
    """Return True if all arrays have the types and shapes of numbers that all structures need."""
    arrays = table.arrays
    if not arrays.keys() >= REQUIRED or not (np.diff(table.start) > 0).all():
        return False
    texts = [arrays[label] for label in ("group", "split", "series") if label in arrays]
    return all(text.ndim == 1 for text in texts) and all(
        arrays[label].dtype.kind in "biuf" and arrays[label].shape[1:] in shapes
        for label, shapes in SHAPES.items()
        if label in arrays
    )


def _frames(table: Table, labels: Labels, names: Sequence[str]) -> Frames:
    """Return all structures of a regular table, whatever their values."""
    arrays, count = table.arrays, len(table)

    def numbers(
        label: str, otherwise: float, unit: float = 1.0, like: Array = arrays["energy"]
    ) -> Array:
        if label not in arrays:
            return np.full(len(like), otherwise, dtype=np.float64)
        return np.multiply(arrays[label], unit, dtype=np.float64)

    with np.errstate(all="ignore"):
        atomic = arrays["numbers"]
        atomic = np.where(are_elements(atomic), atomic, 0).astype(np.int64)
        pbc = arrays["pbc"].astype(bool)
        frames = Frames(
            numbers=atomic,
            positions=numbers("positions", 0, labels.length),
            forces=numbers("forces", 0, labels.forces),
            start=table.start,
            cell=numbers("cell", 0, labels.length),
            pbc=pbc,
            charge=numbers("charge", 0),
            energy=numbers("energy", 0, labels.energy),
            stress=_stresses(arrays.get("stress"), pbc) * labels.stress,
            name=np.array(names, dtype=object),
            group=_texts(arrays, "group", count),
            split=_texts(arrays, "split", count),
            weight=numbers("weight", 1),
            charges=numbers("charges", np.nan, like=atomic),
            dipole=_dipoles(arrays.get("dipole"), pbc) * labels.dipole,
            series=_texts(arrays, "series", count),
            forces_key=np.full(count, table.forces_key, dtype=object),
        )
    unnamed = np.flatnonzero(frames.group == "")
    frames.group[unnamed] = _formulas(frames, unnamed)
    return frames


def _are_sane(frames: Frames, has_stress: bool) -> Array:
    """Return True for structures that are surely good, bool [C]."""
    with np.errstate(all="ignore"):
        sizes = np.linalg.norm(frames.forces, axis=1)
        atoms = (
            (frames.numbers > 0)
            & np.isfinite(frames.positions).all(axis=1)
            & (sizes <= MAX_FORCE * (1 - 1e-12))
        )
        lattice = frames.cell.any(axis=2) | ~frames.pbc
        return np.asarray(
            np.logical_and.reduceat(atoms, frames.start[:-1])
            & np.isfinite(frames.energy)
            & (frames.charge % 1 == 0)
            & (frames.weight > 0)
            & (frames.weight < np.inf)
            & np.isfinite(frames.cell).all(axis=(1, 2))
            & lattice.all(axis=1)
            & (frames.has_stress | ~frames.pbc.all(axis=1) | (not has_stress))
            & _have_sane_charges(frames)
            & (frames.has_dipole | np.isnan(frames.dipole).all(axis=1))
        )


def _have_sane_charges(frames: Frames) -> Array:
    """Return True for structures whose partial charges are all unknown, or surely good."""
    first = frames.start[:-1]
    missing = np.add.reduceat(frames.charges, first) - frames.charge
    are_unknown = np.logical_and.reduceat(np.isnan(frames.charges), first)
    return np.asarray((np.abs(missing) < CHARGE_TOLERANCE * (1 - 1e-9)) | are_unknown)


def _dipoles(given: Array | None, pbc: Array) -> Array:
    """Return dipoles; NaN if none are given, or for structures that are not open."""
    if given is None:
        return np.full((len(pbc), 3), np.nan)
    is_open = np.asarray(~pbc.any(axis=1))
    return np.where(is_open[:, None], given.astype(np.float64), np.nan)


def _stresses(given: Array | None, pbc: Array) -> Array:
    """Return stresses as tensors; NaN if none are given, or for structures that are open."""
    if given is None:
        return np.full((len(pbc), 3, 3), np.nan)
    tensors = given[:, np.array(VOIGT)] if given.shape[1:] == (6,) else given.reshape(-1, 3, 3)
    tensors = tensors.astype(np.float64)
    closed = np.asarray(pbc.all(axis=1))
    return np.where(closed[:, None, None], (tensors + tensors.mT) / 2, np.nan)


def _texts(arrays: dict[str, Array], label: str, count: int) -> Array:
    """Return a column of texts of one line each."""
    if label not in arrays:
        return np.full(count, "", dtype=object)
    values = arrays[label].tolist()
    cleaned = {value: one_line(value) for value in set(values)}
    return np.array([cleaned[value] for value in values], dtype=object)


def _formulas(frames: Frames, chosen: Array) -> list[str]:
    """Return the formulas of some structures."""
    if not len(chosen):
        return []
    some = frames.select(chosen)
    elements = some.elements
    counts, kind = np.unique(some.counts(elements), axis=0, return_inverse=True)
    texts = [formula(np.repeat(elements, row)) for row in counts]
    return [texts[k] for k in kind.reshape(-1)]
