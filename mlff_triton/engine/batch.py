"""Batches of systems: the user's arrays, checked and converted to one form."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from mlff_triton._common.text import short_repr
from mlff_triton.errors import InputError
from mlff_triton.neighbors.box import Box, FloatArray
from mlff_triton.neighbors.neighbor_list import check_positions

HEAD = 64  # rows compared first
MAX_CHARGE = 1_000_000  # elementary charges
SMALL = 1 << 15  # size in bytes up to which comparing bytes is faster than NumPy's comparison
OPEN, NO_CELL = bytes(3), bytes(72)  # pbc and cell of ASE's atoms in vacuum
IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """One or several systems, checked.

    `of` checks everything. Methods that start with ``with_`` check and replace one part and share
    all others, so that consumers recognize changes by identity or by `same_atoms`.

    Attributes
    ----------
    numbers : int64 [N]
        Atomic numbers.
    positions : float64 [N, 3]
        Å.
    boxes : tuple of Box
        Cell of each of the B systems; equal cells may be one object.
    system : int64 [N]
        System of each atom, ascending.
    charge : float64 [B]
        Total charge of each system in elementary charges.
    """

    numbers: IntArray
    positions: FloatArray
    boxes: tuple[Box, ...]
    system: IntArray
    charge: FloatArray

    @property
    def counts(self) -> IntArray:
        """Number of atoms in each system, int64 [B]."""
        return np.bincount(self.system, minlength=len(self.boxes))

    @property
    def has_slabs(self) -> bool:
        """True if a system is periodic in two directions."""
        return any(box.pbc.sum() == 2 for box in self.boxes)

    @property
    def system_ptr(self) -> NDArray[np.int32]:
        """First atom of each system, followed by the number of all atoms, int32 [B + 1]."""
        return np.concatenate([[0], np.cumsum(self.counts)]).astype(np.int32)

    @classmethod
    def of(
        cls,
        numbers: ArrayLike,
        positions: ArrayLike,
        cell: ArrayLike | None = None,
        pbc: ArrayLike = False,
        batch: ArrayLike | None = None,
        charge: ArrayLike | None = None,
    ) -> Batch:
        """Check and convert systems.

        Arguments and errors are those of `mlff_triton.engine.engine.Engine.compute`.
        """
        points = check_positions(as_array(positions))
        z = as_array(numbers)
        if z.shape != (len(points),) or z.dtype.kind not in "iu":
            raise InputError(
                f"{len(points)} atoms need {len(points)} whole atomic numbers, not {z.dtype} "
                f"{list(z.shape)}"
            )
        system = _check_system(batch, len(points))
        n_systems = int(system[-1]) + 1
        return cls(
            numbers=z.astype(np.int64),
            positions=points,
            boxes=_check_boxes(cell, pbc, n_systems),
            system=system,
            charge=check_charge(0 if charge is None else charge, n_systems),
        )

    @classmethod
    def concatenate(cls, batches: Sequence[Batch]) -> Batch:
        """Join several batches into one, in order."""
        starts = np.cumsum([0, *(len(batch.boxes) for batch in batches)])
        return cls(
            numbers=np.concatenate([batch.numbers for batch in batches]),
            positions=np.concatenate([batch.positions for batch in batches]),
            boxes=tuple(box for batch in batches for box in batch.boxes),
            system=np.concatenate([b.system + k for b, k in zip(batches, starts, strict=False)]),
            charge=np.concatenate([batch.charge for batch in batches]),
        )

    def systems(self) -> list[Batch]:
        """Split the batch into one batch per system."""
        ends = self.system_ptr.tolist()
        return [
            Batch(
                self.numbers[first:last],
                self.positions[first:last],
                self.boxes[k : k + 1],
                np.zeros(last - first, dtype=np.int64),
                self.charge[k : k + 1],
            )
            for k, (first, last) in enumerate(pairwise(ends))
        ]

    def same_atoms(self, other: Batch) -> bool:
        """Return True if both batches hold the same atoms, systems and charges."""
        return (
            same(self.numbers, other.numbers)
            and same(self.system, other.system)
            and same(self.charge, other.charge)
        )

    def same_numbers(self, numbers: ArrayLike) -> bool:
        """Return True if atomic numbers, as given by a user, equal those of this batch."""
        return same(as_array(numbers), self.numbers)

    def same_charge(self, charge: object) -> bool:
        """Return True if a total charge equals that of this batch of one system."""
        known = self.charge.item(0)  # not NumPy's, which cannot compare with huge integers
        return isinstance(charge, (int, float, np.number)) and bool(charge == known)

    def same_positions(self, positions: ArrayLike) -> bool:
        """Return True if positions, as given by a user, equal those of this batch."""
        return same(as_array(positions), self.positions)

    def same_box(self, cell: ArrayLike | None, pbc: ArrayLike | None = None) -> bool:
        """Return True if a cell describes the box of this batch of one system.

        Parameters
        ----------
        cell : float [3, 3] or None
            Lattice vectors (rows) in Å. Those of directions without periodicity do not matter.
        pbc : bool or bool [3], optional
            Periodic directions; those of this batch by default.
        """
        box = self.boxes[0]
        if pbc is not None and not _same_pbc(as_array(pbc), box):
            return False
        if cell is None:
            return not box.pbc.any()
        try:
            rows = np.asarray(cell, dtype=np.float64)
        except (TypeError, ValueError):
            return False
        if rows.shape != (3, 3):
            return False
        given = rows.tobytes()
        if given == (NO_CELL if box.pbc.tobytes() == OPEN else box.cell.tobytes()):
            return True
        # A cell that is not finite is refused, even if only its non-periodic rows are affected.
        return math.isfinite(rows.sum()) and bool((rows[box.pbc] == box.cell[box.pbc]).all())

    def with_positions(self, positions: ArrayLike) -> Batch:
        """Return this batch with new positions, float [N, 3] in Å.

        Raises
        ------
        InputError
            If the shape is wrong or a coordinate is not finite.
        """
        points = check_positions(positions)
        if len(points) != len(self.numbers):
            raise InputError(
                f"{len(self.numbers)} atoms need positions [{len(self.numbers)}, 3], not "
                f"{list(points.shape)}"
            )
        return Batch(self.numbers, points, self.boxes, self.system, self.charge)

    def with_box(self, cell: ArrayLike | None, pbc: ArrayLike | None = None) -> Batch:
        """Return this batch in another box, or itself if `same_box` is True.

        Raises
        ------
        InputError
            If the cell is not one; see `mlff_triton.neighbors.box.Box.of`.
        """
        if self.same_box(cell, pbc):
            return self
        return replace(self, boxes=(Box.of(cell, self.boxes[0].pbc if pbc is None else pbc),))

    def with_cells(self, cells: FloatArray) -> Batch:
        """Return this batch in other cells, float64 [B, 3, 3] in Å, or itself if none differs.

        Raises
        ------
        InputError
            If a cell is not one; see `mlff_triton.neighbors.box.Box.of`.
        """
        boxes = tuple(
            box if (box.cell[box.pbc] == cell[box.pbc]).all() else Box.of(cell, box.pbc)
            for box, cell in zip(self.boxes, cells, strict=True)
        )
        same_boxes = all(new is old for new, old in zip(boxes, self.boxes, strict=True))
        return self if same_boxes else replace(self, boxes=boxes)


def _same_pbc(pbc: NDArray[np.generic], box: Box) -> bool:
    """Return True if periodic directions, bool or bool [3], equal those of a box."""
    if pbc.dtype == np.bool_ and pbc.shape == (3,):
        return pbc.tobytes() == box.pbc.tobytes()  # much quicker than a comparison by NumPy
    return pbc.shape in ((), (3,)) and bool((pbc == box.pbc).all())


def as_array(values: ArrayLike | Tensor) -> NDArray[np.generic]:
    """Convert an array or a tensor on any device to a NumPy array."""
    if isinstance(values, np.ndarray):
        return values
    if isinstance(values, Tensor):
        return values.detach().cpu().numpy()
    try:
        return np.asarray(values)
    except ValueError as error:
        raise InputError(f"rows of unequal length do not form an array: {error}") from error


def _check_system(batch: ArrayLike | Tensor | None, n_atoms: int) -> IntArray:
    if batch is None:
        return np.zeros(n_atoms, dtype=np.int64)
    given = as_array(batch)
    if given.dtype.kind not in "iu":
        raise InputError(f"batch must number systems in integers without gaps, not {given.dtype}")
    system = given.astype(np.int64)
    if system.shape != (n_atoms,) or system[0] != 0 or not np.isin(np.diff(system), (0, 1)).all():
        raise InputError(
            f"batch must number the systems of {n_atoms} atoms 0, 0, ..., 1, 1, ... without gaps"
        )
    return system


def _check_boxes(
    cell: ArrayLike | Tensor | None, pbc: ArrayLike | Tensor, n_systems: int
) -> tuple[Box, ...]:
    cells = None if cell is None else as_array(cell)
    periodic = as_array(pbc)
    one_cell = cells is None or cells.ndim == 2
    if one_cell and periodic.ndim < 2:
        return (Box.of(cells, periodic),) * n_systems
    if cells is not None and not one_cell and cells.shape != (n_systems, 3, 3):
        raise InputError(f"{n_systems} systems need cells [{n_systems}, 3, 3], not {cells.shape}")
    if periodic.ndim == 2 and periodic.shape != (n_systems, 3):
        raise InputError(f"{n_systems} systems need pbc [{n_systems}, 3], not {periodic.shape}")
    return tuple(
        Box.of(
            cells if one_cell or cells is None else cells[k],
            periodic[k] if periodic.ndim == 2 else periodic,
        )
        for k in range(n_systems)
    )


def same(a: NDArray[np.generic], b: NDArray[np.generic]) -> bool:
    """Return True if two arrays of at least one dimension are equal.

    Bytes are compared where that is faster than a comparison by NumPy. The first rows are compared
    first, because they usually differ if the arrays do.
    """
    if a is b:
        return True
    if a.shape != b.shape or a[:HEAD].tobytes() != b[:HEAD].tobytes():
        return False
    if len(a) <= HEAD:
        return True
    return (a.nbytes <= SMALL and a.tobytes() == b.tobytes()) or np.array_equal(a, b)


def check_charge(charge: ArrayLike | Tensor, n_systems: int = 1) -> FloatArray:
    """Return the total charge of each system, or raise `InputError` unless all are integers."""
    single: object = charge
    if type(single) is int and -MAX_CHARGE <= single <= MAX_CHARGE:  # quick, for small systems
        return np.full(n_systems, float(single))
    try:
        given = as_array(charge)
        if given.dtype.kind not in "iuf":  # for strings, booleans and complex numbers
            raise TypeError
        values = np.asarray(given, dtype=np.float64)
        values = np.broadcast_to(values.ravel() if values.size == 1 else values, n_systems)
    except (TypeError, ValueError, OverflowError):
        values = np.array(np.nan)
    if not ((np.abs(values) <= MAX_CHARGE) & (values == np.floor(values))).all():
        found = charge.item() if isinstance(charge, np.generic) else charge
        raise InputError(
            f"the total charge must be an integer, or a list of {n_systems}, not "
            f"{short_repr(found)}"
        )
    return values.copy()


def to_tensor(array: NDArray[np.generic], device: torch.device) -> Tensor:
    """Copy an array to a tensor on a device."""
    return torch.tensor(array, device=device)
