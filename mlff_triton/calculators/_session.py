"""One engine, evaluated again and again: what every front end shares."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from mlff_triton.engine.batch import Batch, check_charge, same
from mlff_triton.engine.engine import Engine
from mlff_triton.model.prediction import Ensemble, Prediction
from mlff_triton.model.tensornet import TensorNet
from mlff_triton.neighbors.box import Box
from mlff_triton.neighbors.neighbor_list import check_positions

System = tuple[ArrayLike, ArrayLike, ArrayLike | None, ArrayLike, float]
"""Atomic numbers, positions, cell, periodicity and charge of one system."""


class Session:
    """An engine, and the last system's cell and atoms, which are not checked anew if they stay.

    Parameters
    ----------
    model, device, dtype, backend, skin
        As for `mlff_triton.engine.engine.Engine`.
    """

    def __init__(
        self,
        model: TensorNet | Ensemble | str | Path,
        device: str = "auto",
        dtype: str = "float32",
        backend: str = "auto",
        skin: float = 0.5,
    ) -> None:
        self.engine = Engine(model, device, dtype, backend, skin=skin)
        self._last: tuple[np.ndarray, np.ndarray, Batch] | None = None

    def evaluate(
        self,
        numbers: ArrayLike,
        positions: ArrayLike,
        cell: ArrayLike | None,
        pbc: ArrayLike,
        charge: float = 0,
    ) -> Prediction:
        """Energy, forces and virial of one system; what has not changed is reused.

        Parameters
        ----------
        numbers : int [N]
            Atomic numbers.
        positions : float [N, 3]
            Positions in Å.
        cell : float [3, 3] or None
            Lattice vectors (rows) in Å.
        pbc : bool or bool [3]
            Periodic directions.
        charge : int
            Total charge in elementary charges.

        Returns
        -------
        Prediction
            With one system, on the CPU.

        Raises
        ------
        InputError
            If a number is not finite, shapes disagree, the charge is not an integer, an element is
            unknown or two atoms coincide.
        """
        batch = self._update(numbers, positions, cell, pbc, charge)
        return self.engine.evaluate(batch)

    def evaluate_many(self, systems: list[System]) -> Prediction:
        """Several systems, each as the arguments of `evaluate`, in one batch."""
        batches = [Batch.of(z, x, c, pbc, charge=check_charge(q)) for z, x, c, pbc, q in systems]
        counts = [len(batch.numbers) for batch in batches]
        return self.engine.evaluate(
            Batch(
                numbers=np.concatenate([batch.numbers for batch in batches]),
                positions=np.concatenate([batch.positions for batch in batches]),
                boxes=tuple(batch.boxes[0] for batch in batches),
                system=np.repeat(np.arange(len(systems)), counts),
                charge=np.concatenate([batch.charge for batch in batches]),
            )
        )

    def _update(
        self,
        numbers: ArrayLike,
        positions: ArrayLike,
        cell: ArrayLike | None,
        pbc: ArrayLike,
        charge: float,
    ) -> Batch:
        """The batch of a system; arrays equal to the last one's are the last one's."""
        rows = np.zeros(0) if cell is None else np.asarray(cell)
        periodic = np.atleast_1d(pbc)
        if self._last is not None:
            last_rows, last_periodic, batch = self._last
            same_box = same(rows, last_rows) and same(periodic, last_periodic)
            same_atoms = same(np.asarray(numbers), batch.numbers)
            if same_atoms and charge == batch.charge[0]:
                points = check_positions(positions)
                boxes = batch.boxes if same_box else (Box.of(cell, pbc),)
                if len(points) == len(batch.numbers):
                    batch = Batch(batch.numbers, points, boxes, batch.system, batch.charge)
                    self._last = rows.copy(), periodic.copy(), batch
                    return batch
        batch = Batch.of(numbers, positions, cell, pbc, charge=check_charge(charge))
        self._last = rows.copy(), periodic.copy(), batch
        return batch
