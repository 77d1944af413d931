"""Simulation cells: checked, completed to a basis, and compared with one another."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mlff_triton._common.text import short_repr
from mlff_triton.errors import InputError

MAX_EDGES = 500_000_000
MAX_LENGTH = 1e12  # Å; beyond it, a cell has no accurate inverse
MAX_NEIGHBORS = 20_000  # per atom; matter has some hundreds of them within ten Å

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
        given = np.asarray(pbc)
        if given.shape not in ((), (3,)) or given.dtype.kind not in "biu":
            raise InputError(f"pbc must be one bool or three, not {short_repr(pbc)}")
        periodic = np.broadcast_to(given.astype(bool), 3).copy()
        rows = np.zeros((3, 3)) if cell is None else as_floats(cell, "the cell").copy()
        if rows.shape != (3, 3):
            raise InputError(f"the cell must have shape [3, 3], not {list(rows.shape)}")
        if not np.isfinite(rows).all():
            raise InputError("the cell holds NaN or infinity")
        if not periodic.any():  # as the null space below, which takes longer
            return cls(np.eye(3), periodic)
        rows[~periodic] = 0.0
        if np.abs(rows).max() > MAX_LENGTH:
            raise InputError(f"the cell is {np.abs(rows).max():.0e} Å long: shorten it")
        is_zero = np.linalg.norm(rows[periodic], axis=1) == 0
        if is_zero.any() or np.linalg.matrix_rank(rows[periodic]) < periodic.sum():
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


def check_box(n_atoms: int, box: Box, cutoff: float, extent: float | FloatArray = np.inf) -> None:
    """Raise `InputError` if there are so many pairs that their list could not fit in memory.

    The number of neighbors is estimated before anything is built: from the mean density, and from
    the images of a single atom.

    Parameters
    ----------
    n_atoms : int
        Number of atoms in the cell.
    box : Box
        The cell.
    cutoff : float
        Radius of the neighbor list in Å, including its skin.
    extent : float or float [3]
        Extent of the atoms in Å along each direction; infinite if it is unknown.
    """
    reach = 2 * cutoff
    span = np.broadcast_to(np.maximum(extent, reach), 3).copy()
    span[box.pbc] = np.minimum(span, box.heights)[box.pbc]
    with np.errstate(over="ignore"):
        images = np.prod(np.maximum(reach / box.heights[box.pbc], 1.0))
        neighbors = max(n_atoms * np.prod(reach / span), images)
    if neighbors > MAX_NEIGHBORS:
        cell = f"the cell is {box.heights[box.pbc].min():.2g} Å high, and " if box.pbc.any() else ""
        raise InputError(
            f"{cell}an atom has about {neighbors:.0e} neighbors within {cutoff:g} Å: check its "
            "units, or take a smaller cutoff or skin"
        )
    if n_atoms * neighbors > MAX_EDGES:
        raise InputError(
            f"{n_atoms:,} atoms with about {neighbors:.0f} neighbors within {cutoff:g} Å are too "
            "many at once: divide the system among GPUs by LAMMPS, or take a smaller cutoff or skin"
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
