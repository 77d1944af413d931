"""Systems as users give them, checked and in one form."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.neighbors.box import Box, FloatArray
from mlff_triton.neighbors.neighbor_list import check_positions

HEAD = 64  # rows that are looked at first
IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """One or several systems.

    Attributes
    ----------
    numbers : int64 [N]
        Atomic numbers.
    positions : float64 [N, 3]
        Å.
    boxes : tuple of Box
        Cell of each of the B systems; equal ones may be one object.
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
        """Number of atoms of each system, int64 [B]."""
        return np.bincount(self.system, minlength=len(self.boxes))

    @property
    def system_ptr(self) -> NDArray[np.int32]:
        """First atom of each system, and the number of all atoms, int32 [B + 1]."""
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
        """Check systems; arguments and errors as for `mlff_triton.engine.engine.Engine.compute`."""
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


def as_array(values: ArrayLike | Tensor) -> NDArray[np.generic]:
    """An array of what may be a tensor on any device."""
    if isinstance(values, Tensor):
        return values.detach().cpu().numpy()
    try:
        return np.asarray(values)
    except ValueError as error:
        raise InputError(f"rows of unequal length are no array: {error}") from error


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
    """Whether two arrays, of one dimension at least, are equal; quick if they differ at the start.

    Comparing the bytes of a few rows takes a tenth of the time that NumPy takes to compare them.
    """
    if a is b:
        return True
    if a.shape != b.shape or a[:HEAD].tobytes() != b[:HEAD].tobytes():
        return False
    return len(a) <= HEAD or np.array_equal(a, b)


def check_charge(charge: ArrayLike | Tensor, n_systems: int = 1) -> FloatArray:
    """Total charge of each system, or an `InputError` unless all are integers."""
    try:
        values = np.broadcast_to(np.asarray(as_array(charge), dtype=np.float64), n_systems)
    except (TypeError, ValueError):
        values = np.array(np.nan)
    if not (np.isfinite(values) & (values == np.floor(values))).all():
        raise InputError(
            f"the total charge must be an integer, or a list of {n_systems}, not {charge!r}"
        )
    return values.copy()


def to_tensor(array: NDArray[np.generic], device: torch.device) -> Tensor:
    """A tensor of its own, on a device."""
    return torch.tensor(array, device=device)
