"""Labeled structures in memory, in one form and in the units of the package."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlff_triton.errors import InputError
from mlff_triton.model.config import SYMBOLS

Array = NDArray[Any]


class Frame(NamedTuple):
    """One labeled structure; shapes and units are those of `Frames`.

    The stress is NaN if it is unknown, and partial charges and dipole are None.
    """

    name: str
    numbers: Array
    positions: Array
    cell: Array
    pbc: Array
    charge: float
    energy: float
    forces: Array
    stress: Array
    group: str
    split: str
    weight: float = 1.0
    charges: Array | None = None
    dipole: Array | None = None
    series: str = ""
    forces_key: str = "forces"


OF_ATOMS = ("numbers", "positions", "forces", "charges")
"""Fields of `Frames` with a row per atom; all others but ``start`` have one per structure."""


@dataclass(frozen=True)
class Frames:
    """C labeled structures with N atoms in all.

    Attributes
    ----------
    numbers : int64 [N]
        Atomic numbers.
    positions, forces : float64 [N, 3]
        Positions in Å and forces in eV/Å.
    start : int64 [C + 1]
        First atom of each structure, with the total at the end.
    cell : float64 [C, 3, 3]
        Lattice vectors as rows in Å.
    pbc : bool [C, 3]
        Periodic directions.
    charge, energy : float64 [C]
        Total charges in elementary charges and energies in eV.
    stress : float64 [C, 3, 3]
        Stresses in eV/Å^3, positive under tension; NaN where unknown.
    name, group, split : str [C]
        Names for messages, groups for reports, and the split that a file gives, or nothing.
    weight : float64 [C]
        Weights in the loss.
    charges : float64 [N]
        Partial charges in elementary charges; NaN for all atoms of a structure where unknown.
    dipole : float64 [C, 3]
        Dipoles about the origin in e Å; NaN where unknown.
    series : str [C]
        Names of the series whose energies are compared with each other, or nothing.
    forces_key : str [C]
        Names of the forces in the files, for messages; after a ``-`` if files have the negative.

    Examples
    --------
    >>> import numpy as np
    >>> dimer = Frame(
    ...     "dimer", np.array([1, 1]), np.eye(2, 3), np.zeros((3, 3)), np.zeros(3, bool), 0.0, -3.0,
    ...     np.zeros((2, 3)), np.full((3, 3), np.nan), "H2", ""
    ... )
    >>> Frames.of([dimer, dimer]).counts((1, 8)).tolist()
    [[2, 0], [2, 0]]
    """

    numbers: Array
    positions: Array
    forces: Array
    start: Array
    cell: Array
    pbc: Array
    charge: Array
    energy: Array
    stress: Array
    name: Array
    group: Array
    split: Array
    weight: Array
    charges: Array
    dipole: Array
    series: Array
    forces_key: Array

    def __len__(self) -> int:
        return len(self.energy)

    @classmethod
    def of(cls, frames: Sequence[Frame]) -> Frames:
        """Gather structures, at least one."""
        columns = Frame(*map(list, zip(*frames, strict=True)))  # type: ignore[arg-type]
        lengths = [len(numbers) for numbers in columns.numbers]
        unknown = np.full(3, np.nan)
        charges = [
            np.full(n, np.nan) if given is None else given
            for n, given in zip(lengths, columns.charges, strict=True)  # type: ignore[arg-type]
        ]
        dipoles = [unknown if given is None else given for given in columns.dipole]  # type: ignore[union-attr]
        return cls(
            numbers=np.concatenate(columns.numbers),
            positions=np.concatenate(columns.positions),
            forces=np.concatenate(columns.forces),
            start=np.concatenate([[0], np.cumsum(lengths)]),
            cell=np.array(columns.cell, dtype=np.float64),
            pbc=np.array(columns.pbc, dtype=bool),
            charge=np.array(columns.charge, dtype=np.float64),
            energy=np.array(columns.energy, dtype=np.float64),
            stress=np.array(columns.stress, dtype=np.float64),
            name=np.array(columns.name, dtype=object),
            group=np.array(columns.group, dtype=object),
            split=np.array(columns.split, dtype=object),
            weight=np.array(columns.weight, dtype=np.float64),
            charges=np.concatenate(charges),
            dipole=np.array(dipoles, dtype=np.float64),
            series=np.array(columns.series, dtype=object),
            forces_key=np.array(columns.forces_key, dtype=object),
        )

    @classmethod
    def join(cls, parts: Sequence[Frames]) -> Frames:
        """Join sets of structures."""
        if len(parts) == 1:
            return parts[0]
        offsets = np.cumsum([0] + [len(part.numbers) for part in parts])
        starts = [part.start[1:] + offset for part, offset in zip(parts, offsets, strict=False)]
        joined = {
            field.name: np.concatenate([getattr(part, field.name) for part in parts])
            for field in fields(cls)
            if field.name != "start"
        }
        return cls(start=np.concatenate([[0], *starts]), **joined)

    @property
    def n_atoms(self) -> Array:
        """Number of atoms of each structure, int64 [C]."""
        return np.diff(self.start)

    @property
    def elements(self) -> tuple[int, ...]:
        """Atomic numbers that occur, ascending."""
        return tuple(np.unique(self.numbers).tolist())

    @property
    def owner(self) -> Array:
        """Structure of each atom, int64 [N]."""
        return np.repeat(np.arange(len(self)), self.n_atoms)

    @property
    def has_stress(self) -> Array:
        """True for structures with a stress, bool [C]."""
        return np.asarray(np.isfinite(self.stress).all(axis=(1, 2)))

    @property
    def has_charges(self) -> Array:
        """True for structures with partial charges, bool [C]."""
        return np.asarray(np.isfinite(self.charges[self.start[:-1]]))

    @property
    def has_dipole(self) -> Array:
        """True for structures with a dipole, bool [C]."""
        return np.asarray(np.isfinite(self.dipole).all(axis=1))

    @cached_property
    def unit(self) -> Array:
        """Number of the series of each structure, or of itself alone, int64 [C].

        They are in the order of the first structures, from 0 on.
        """
        alone = np.flatnonzero(self.series == "")
        _, number = np.unique(self.series.astype(str), return_inverse=True)
        number = number.astype(np.int64)
        number[alone] = len(self) + alone
        _, first, found = np.unique(number, return_index=True, return_inverse=True)
        return np.asarray(np.argsort(np.argsort(first))[found])

    def counts(self, elements: Sequence[int]) -> Array:
        """Return the number of atoms of each element in each structure, int64 [C, elements]."""
        owner = self.owner
        return np.stack(
            [np.bincount(owner[self.numbers == z], minlength=len(self)) for z in elements], axis=1
        )

    def atoms_of(self, chosen: Array) -> Array:
        """Return the indices of the atoms of structures, in their order."""
        lengths = self.n_atoms[chosen]
        ends = np.cumsum(lengths)
        first = np.repeat(self.start[:-1][chosen] - (ends - lengths), lengths)
        return np.asarray(first + np.arange(len(first)))

    def select(self, chosen: Array) -> Frames:
        """Return some structures, by their indices."""
        atoms = self.atoms_of(chosen)
        start = np.concatenate([[0], np.cumsum(self.n_atoms[chosen])])
        names = [field.name for field in fields(self) if field.name != "start"]
        rows = {name: atoms if name in OF_ATOMS else chosen for name in names}
        return Frames(start=start, **{name: getattr(self, name)[rows[name]] for name in names})

    @property
    def fingerprint(self) -> str:
        """Hash of all structures and labels, by which a resumed training knows them."""
        digest = hashlib.sha256()
        for field in fields(self):
            if field.name in ("name", "forces_key"):  # files may be moved or written anew
                continue
            array = getattr(self, field.name)
            if field.name == "series" and not array.any():
                continue
            text = "\0".join(map(str, array)).encode() if array.dtype == object else array.tobytes()
            digest.update(text)
        return digest.hexdigest()[:16]


def formula(numbers: Array) -> str:
    """Return the elements and their numbers of atoms, in alphabetical order.

    Examples
    --------
    >>> formula(np.array([8, 1, 1]))
    'H2O'
    """
    found, counts = np.unique(numbers, return_counts=True)
    parts = zip((SYMBOLS[z] for z in found), counts, strict=True)
    return "".join(f"{symbol}{count if count > 1 else ''}" for symbol, count in sorted(parts))


def check_trained(frames: Frames, trained: Frames, what: str) -> None:
    """Raise `InputError` if structures have elements that those to train on lack."""
    missing = sorted(set(frames.elements) - set(trained.elements))
    if missing:
        raise InputError(
            f"{SYMBOLS[missing[0]]} occurs in the {what} set and has no sample in the training "
            "set: choose another split"
        )
