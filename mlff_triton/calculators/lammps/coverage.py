"""Checks of atoms and ghosts: that LAMMPS sends enough of them, and that atoms are apart."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from mlff_triton.calculators._plausibility import check_distances
from mlff_triton.engine.batch import Batch, IntArray
from mlff_triton.errors import InputError, OverlappingAtomsError
from mlff_triton.neighbors.box import FloatArray

NEAR = 2.0
"""Å; atoms at larger distances are apart, whatever their elements."""
SHARE = 0.02
"""Largest share of the time of a run on a GPU that checks of distances take."""


def check_coverage(lmp: Any, positions: FloatArray, n_copies: IntArray, reach: float) -> None:
    """Check that all own atoms near the faces of this rank's domain have ghosts elsewhere.

    LAMMPS's cutoff of ghosts can be changed, but not read, in a run. This recognizes one that is
    too small wherever atoms lie at a distance between it and the reach from a face, and from all
    others.

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
    fractions = (positions - origin) @ inverse
    if lmp.extract_setting("triclinic"):
        begin, end = (np.array(lmp.extract_global(f"sub{side}_lambda")) for side in ("lo", "hi"))
    else:
        begin, end = (
            (lmp.extract_global(f"sub{side}") - origin) @ inverse for side in ("lo", "hi")
        )
    heights = 1 / np.linalg.norm(inverse, axis=0)
    is_open = ~np.array(periodic, dtype=bool)
    below = np.where(is_open & (begin < 1e-9), np.inf, (fractions - begin) * heights)
    above = np.where(is_open & (end > 1 - 1e-9), np.inf, (end - fractions) * heights)
    distances = np.minimum(below, above).min(axis=1, initial=np.inf)
    missing = distances[(n_copies == 0) & (distances < reach)]
    if len(missing):
        raise InputError(
            f"an atom {missing.min():.3g} Å from the edge of a rank's domain has no ghost, and "
            f"ghosts are needed up to {reach:g} Å: remove `comm_modify cutoff` after the coupling"
        )


class ContactChecks:
    """Checks that own atoms are not far too close to one another or to ghosts.

    The search for pairs runs on the CPU, where steps of the model take far longer.

    Parameters
    ----------
    limits_time : bool
        True if steps run on a GPU, which is faster, so that checks are left out now and then.
    """

    def __init__(self, *, limits_time: bool) -> None:
        self._limits_time = limits_time
        self._next = 0.0

    @property
    def is_affordable(self) -> bool:
        """True if one more check would take little of the time since the last one."""
        return not self._limits_time or time.monotonic() >= self._next

    def check(
        self,
        numbers: IntArray,
        positions: FloatArray,
        n_own: int,
        labels: IntArray,
        *,
        step: int | None,
    ) -> None:
        """Check atoms; see `check_apart`.

        Parameters
        ----------
        numbers, positions, n_own, labels
            Same as for `check_apart`.
        step : int or None
            Step of a run that led to these positions; None where a run begins.

        Raises
        ------
        InputError, OverlappingAtomsError
            If two atoms are too close, or a position is not finite.
        """
        start = time.monotonic()
        try:
            check_apart(numbers, positions, n_own, labels)
        except InputError as error:
            if step is None:
                raise
            problem = str(error).partition(": ")[0]
            raise type(error)(
                f"{problem} in step {step}: take a shorter time step, or minimize first"
            ) from None
        end = time.monotonic()
        self._next = end + (end - start) / SHARE


def check_apart(numbers: IntArray, positions: FloatArray, n_own: int, tags: IntArray) -> None:
    """Check that own atoms are not far too close to one another or to ghosts.

    Parameters
    ----------
    numbers : int64 [N]
        Atomic numbers of own atoms, of which there is one at least, and of ghosts.
    positions : float64 [N, 3]
        Å.
    n_own : int
        Number of own atoms.
    tags : int64 [N]
        IDs of atoms, by which a message calls them.

    Raises
    ------
    InputError, OverlappingAtomsError
        If two atoms are too close, or a position is not finite.
    """
    own = positions[:n_own]
    low, high = own.min(axis=0) - NEAR, own.max(axis=0) + NEAR
    is_near = ((positions >= low) & (positions <= high)).all(axis=1)
    is_near[:n_own] = True  # even those that are not finite
    labels = tags[is_near]
    try:
        check_distances(Batch.of(numbers[is_near], positions[is_near]), labels)
    except OverlappingAtomsError as error:
        if error.atoms is None:
            raise
        i, j = labels[list(error.atoms)]
        raise OverlappingAtomsError(
            f"atoms {i} and {j} are at the same point: move or remove one of them"
        ) from None
