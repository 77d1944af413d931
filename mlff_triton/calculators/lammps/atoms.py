"""Atoms of a rank in LAMMPS: LAMMPS's own arrays, and their values in the last step."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlff_triton.engine.batch import IntArray
from mlff_triton.errors import InputError
from mlff_triton.neighbors.box import FloatArray


class KnownAtoms:
    """IDs and types of own atoms and ghosts in the last step.

    Types may change in any step. IDs change only when LAMMPS exchanges atoms and ghosts.

    Parameters
    ----------
    lmp : lammps.lammps
        A LAMMPS instance.

    Attributes
    ----------
    tags, types : int [N]
        IDs and types, those of own atoms first. Ghosts may be unknown.
    n_own, n_total : int
        Number of own atoms on this rank, and on all ranks.
    """

    def __init__(self, lmp: Any) -> None:
        self._lmp = lmp
        self.forget()

    def forget(self) -> None:
        """Make the next atoms count as different from the last ones, even if there are none."""
        self.tags: IntArray = np.zeros(0, dtype=np.int32)
        self.types: IntArray = np.zeros(0, dtype=np.int32)
        self.n_own = self.n_total = -1

    def update(self, n_own: int, *, with_ghosts: bool) -> bool:
        """Take over the present atoms, and return True if they differ from the last ones.

        Parameters
        ----------
        n_own : int
            Number of own atoms.
        with_ghosts : bool
            If False, ghosts do not count.

        Raises
        ------
        InputError
            If atoms have no IDs.
        """
        lmp, has_exchanged = self._lmp, is_rebuilt(self._lmp)
        n_seen = n_own + (lmp.extract_setting("nghost") if with_ghosts else 0)
        n_total = int(lmp.get_natoms())
        tags, types = (view(lmp, name, n_seen) for name in ("id", "type"))
        if has_exchanged and not with_ghosts:
            self.tags, self.types = self.tags[: self.n_own], self.types[: self.n_own]
        known = len(self.types) if with_ghosts else n_own
        is_same = (n_own, n_total) == (self.n_own, self.n_total)
        is_same = is_same and np.array_equal(types, self.types[:known])
        if is_same and not (has_exchanged and (tags != self.tags[:known]).any()):
            return False
        if n_seen and tags.min() < 1:
            raise InputError("atoms have no IDs: remove `atom_modify id no`")
        self.tags, self.types = tags.copy(), types.copy()
        self.n_own, self.n_total = n_own, n_total
        return True


def is_rebuilt(lmp: Any) -> bool:
    """Return True if LAMMPS has exchanged atoms and ghosts in this step."""
    return bool(lmp.extract_setting("neigh_ago") == 0)


def view(lmp: Any, name: str, n_atoms: int) -> NDArray[Any]:
    """Return LAMMPS's own array of a property of own atoms and ghosts."""
    return lmp.numpy.extract_atom(name, nelem=n_atoms) if n_atoms else np.zeros(0, dtype=np.int32)


def positions_of(lmp: Any, n_atoms: int) -> FloatArray:
    """Return LAMMPS's own array of positions [N, 3]."""
    return lmp.numpy.extract_atom("x", nelem=n_atoms) if n_atoms else np.zeros((0, 3))
