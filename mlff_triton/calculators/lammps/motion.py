"""Check that no atom has left the region that ghosts cover.

LAMMPS exchanges ghosts before an atom has moved by half the skin, unless a script changes
``neighbor`` or ``neigh_modify``. If ``neigh_modify`` makes LAMMPS check distances in each step,
atoms are compared only where they have moved farthest: in steps as long after an exchange as the
last interval between exchanges. A new skin takes effect when a run begins, so atoms are compared in
each step until the first exchange of a run.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mlff_triton.calculators.lammps.atoms import positions_of
from mlff_triton.errors import SimulationError
from mlff_triton.neighbors.box import FloatArray

IN_EACH_STEP = {"neigh_every": 1, "neigh_delay": 0, "neigh_dist_check": 1}
"""Settings of LAMMPS with which it checks distances in each step."""


class MotionCheck:
    """Distances that own atoms have moved since LAMMPS exchanged ghosts.

    Parameters
    ----------
    lmp : lammps.lammps
        A LAMMPS instance.
    skin : float
        Å. Ghosts cover atoms that have moved by half of it.

    Attributes
    ----------
    at_exchange : float64 [n_own, 3]
        Positions of own atoms when ghosts were exchanged.
    """

    def __init__(self, lmp: Any, skin: float) -> None:
        self._lmp = lmp
        self._covered = 0.5 * skin * (1 + 1e-9)
        self._age = -1
        self._last_age = 0
        self.at_exchange: FloatArray = np.zeros((0, 3))
        self._moved: FloatArray = np.zeros((0, 3))  # a buffer

    def update(self, n_own: int, *, begins: bool) -> None:
        """Store the positions if LAMMPS has just exchanged ghosts; called in each step.

        Parameters
        ----------
        n_own : int
            Number of own atoms.
        begins : bool
            True at the beginning of a run.
        """
        age = self._lmp.extract_setting("neigh_ago")
        if age == 0:
            self._last_age = 0 if begins else self._age
            if len(self.at_exchange) != n_own:  # because new memory costs more than a copy
                self.at_exchange, self._moved = np.empty((2, n_own, 3))
            self.at_exchange[:] = positions_of(self._lmp, n_own)
        self._age = age

    def check(self) -> None:
        """Check distances that may be too long.

        Raises
        ------
        SimulationError
            If an atom has moved too far.
        """
        if self._age and len(self.at_exchange) and self._is_due():
            self._check_distances()

    def _is_due(self) -> bool:
        extract = self._lmp.extract_setting
        looks_itself = all(extract(name) == value for name, value in IN_EACH_STEP.items())
        return self._age >= self._last_age or not looks_itself

    def _check_distances(self) -> None:
        positions = positions_of(self._lmp, len(self.at_exchange))
        moved = np.subtract(positions, self.at_exchange, out=self._moved)
        if 3 * max(moved.max(), -moved.min()) ** 2 < self._covered**2:
            return  # without the lengths of all vectors
        farthest = np.sqrt((moved**2).sum(axis=1).max())
        if farthest > self._covered:
            raise SimulationError(
                f"an atom moved by {farthest:.2g} Å since LAMMPS exchanged ghosts, which cover "
                f"{self._covered:.2g} Å: set `neigh_modify every 1 delay 0 check yes`, leave "
                "`neighbor` as it is, or couple with a larger skin"
            )
