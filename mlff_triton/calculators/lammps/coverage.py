"""Check that LAMMPS sends enough ghosts."""

from __future__ import annotations

from typing import Any

import numpy as np

from mlff_triton.engine.batch import IntArray
from mlff_triton.errors import InputError
from mlff_triton.neighbors.box import FloatArray


def check_coverage(lmp: Any, positions: FloatArray, n_copies: IntArray, reach: float) -> None:
    """Check that all own atoms near the faces of this rank's domain have ghosts elsewhere.

    LAMMPS's cutoff of ghosts can be changed but not read during a run. A cutoff that is too small
    is recognized if some atom lies farther from a face than this cutoff, but within the reach, and
    far enough from all other faces.

    Parameters
    ----------
    lmp : lammps.lammps
        A LAMMPS instance.
    positions : float64 [n_own, 3]
        Positions of own atoms when ghosts were exchanged.
    n_copies : int64 [n_own]
        Number of ghosts of each atom on all ranks.
    reach : float
        Distance up to which ghosts are needed.

    Raises
    ------
    InputError
        If an atom has no ghost.
    """
    low, high, xy, yz, xz, periodic, _ = lmp.extract_box()
    origin = np.array(low)
    cell = np.diag(high - origin)
    cell[1, 0], cell[2, 0], cell[2, 1] = xy, xz, yz
    inverse = np.linalg.inv(cell)
    lonely = np.flatnonzero(n_copies == 0)
    fractions = inverse.T @ (positions.take(lonely, axis=0) - origin).T
    lowest, highest = fractions.min(axis=1, initial=np.inf), fractions.max(axis=1, initial=-np.inf)
    if lmp.extract_setting("triclinic"):
        begin, end = (np.array(lmp.extract_global(f"sub{side}_lambda")) for side in ("lo", "hi"))
    else:
        begin, end = (
            (lmp.extract_global(f"sub{side}") - origin) @ inverse for side in ("lo", "hi")
        )
    heights = 1 / np.linalg.norm(inverse, axis=0)
    is_open = ~np.array(periodic, dtype=bool)
    below = np.where(is_open & (begin < 1e-9), np.inf, (lowest - begin) * heights)
    above = np.where(is_open & (end > 1 - 1e-9), np.inf, (end - highest) * heights)
    distance = min(*below, *above)
    if distance < reach:
        raise InputError(
            f"an atom {distance:.3g} Å from the edge of a rank's domain has no ghost, and ghosts "
            f"are needed up to {reach:g} Å: remove `comm_modify cutoff` after the coupling"
        )
