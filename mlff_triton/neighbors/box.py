"""Simulation cells: checked, completed to a basis, and compared with one another."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mlff_triton.errors import InputError

MAX_EDGES = 500_000_000

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True)
class Box:
    """A checked simulation cell.

    Attributes
    ----------
    cell : float64 [3, 3]
        Lattice vectors (rows) in Å. Unit vectors stand in for the non-periodic directions, so that
        the rows always form a basis.
    pbc : bool [3]
        Periodic directions.
    """

    cell: FloatArray
    pbc: BoolArray

    @classmethod
    def of(cls, cell: ArrayLike | None, pbc: ArrayLike) -> Box:
        """Check a cell and complete it to a basis.

        Parameters
        ----------
        cell : float [3, 3] or None
            Lattice vectors (rows) in Å.
        pbc : bool or bool [3]
            Periodic directions.

        Returns
        -------
        Box

        Raises
        ------
        InputError
            If a shape is wrong, a value is not finite, or the vectors of the periodic directions
            are zero or linearly dependent.
        """
        periodic = np.asarray(pbc, dtype=bool)
        if periodic.shape not in ((), (3,)):
            raise InputError(f"pbc must be one bool or three, not {periodic.tolist()}")
        periodic = np.broadcast_to(periodic, 3).copy()
        rows = np.zeros((3, 3)) if cell is None else as_floats(cell, "the cell").copy()
        if rows.shape != (3, 3):
            raise InputError(f"the cell must have shape [3, 3], not {list(rows.shape)}")
        if not np.isfinite(rows).all():
            raise InputError("the cell holds NaN or infinity")
        rows[~periodic] = 0.0
        if (np.linalg.norm(rows[periodic], axis=1) == 0).any() or (
            periodic.any() and np.linalg.matrix_rank(rows[periodic]) < periodic.sum()
        ):
            raise InputError(
                "a periodic direction has no independent cell vector: set the cell, or pbc=False"
            )
        # The null space of the periodic vectors is an orthonormal basis of the open directions.
        rows[~periodic] = np.linalg.svd(rows)[2][periodic.sum() :]
        return cls(rows, periodic)

    @property
    def heights(self) -> FloatArray:
        """Distance between opposite faces along each direction, float64 [3], Å."""
        return np.asarray(1.0 / np.linalg.norm(np.linalg.inv(self.cell), axis=0))


def as_floats(values: ArrayLike, name: str) -> FloatArray:
    """Convert values to float64, or raise an `InputError` that names them."""
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be an array of real numbers: {error}") from error


def check_box(n_atoms: int, box: Box, cutoff: float) -> None:
    """Raise `InputError` if a cell is so small that its neighbor list could not fit in memory."""
    if not box.pbc.any():
        return
    images = np.prod(2 * np.ceil(cutoff / box.heights[box.pbc]) + 1)
    if n_atoms * images > MAX_EDGES:
        raise InputError(
            f"the cell is only {box.heights[box.pbc].min():.2g} Å high, {images:.0e} images lie "
            f"within the cutoff of {cutoff:g} Å: check its units"
        )


def deformation(old: Box, new: Box) -> tuple[FloatArray, float]:
    """Compute the matrix F that maps one cell to another, and the smallest stretch it causes.

    With ``pos = pos0 @ F + u``, a pair of atoms that was farther apart than ``radius`` is now
    farther apart than ``sigma radius - |u_i| - |u_j|``, where sigma is the smallest singular value
    of F.

    Parameters
    ----------
    old, new : Box
        Two cells with the same periodic directions.

    Returns
    -------
    F : float64 [3, 3]
    sigma : float
    """
    strain = np.eye(3)
    if old is new or (old.cell == new.cell).all():
        return strain, 1.0
    before, after = old.cell[old.pbc], new.cell[new.pbc]
    strain += np.linalg.pinv(before) @ (after - before)
    return strain, float(np.linalg.svd(strain, compute_uv=False).min())
