"""An engine that evaluates one system again and again: the common part of all front ends."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from numpy.typing import ArrayLike

from mlff_triton.calculators._plausibility import check_distances, warn_of_unknown
from mlff_triton.engine.batch import Batch, check_charge
from mlff_triton.engine.engine import Engine
from mlff_triton.model.prediction import Ensemble, Prediction
from mlff_triton.model.tensornet import TensorNet


class System(NamedTuple):
    """One system, as a user gives it.

    Attributes
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
    """

    numbers: ArrayLike
    positions: ArrayLike
    cell: ArrayLike | None
    pbc: ArrayLike
    charge: float = 0

    def check(self) -> Batch:
        """Return a batch of this system; errors are those of `Batch.of`."""
        numbers, positions, cell, pbc, charge = self
        return Batch.of(numbers, positions, cell, pbc, charge=check_charge(charge))


class Session:
    """An engine and its last system, of which only the changed parts are checked again.

    Parameters
    ----------
    model, device, dtype, backend, skin
        Same as for `mlff_triton.engine.engine.Engine`.
    """

    def __init__(
        self,
        model: TensorNet | Ensemble | str | Path,
        device: str = "auto",
        dtype: str | torch.dtype = "float32",
        backend: str = "auto",
        skin: float | str = "auto",
    ) -> None:
        self.engine = Engine(model, device, dtype, backend, skin=skin)
        self._batch: Batch | None = None
        self._has_warned = False

    def changes(self, system: System) -> list[str]:
        """Return which fields of a system differ from the last one: its box counts as the cell."""
        batch = self._batch
        if batch is None:
            return list(System._fields)
        same = {
            "positions": batch.same_positions(system.positions),
            "numbers": batch.same_numbers(system.numbers),
            "cell": batch.same_box(system.cell, system.pbc),
            "charge": batch.same_charge(system.charge),
        }
        return [name for name, is_same in same.items() if not is_same]

    def evaluate(self, system: System) -> Prediction:
        """Compute energy, forces and virial of one system.

        Parameters
        ----------
        system : System
            Positions in float64 are kept, not copied, until the next call.

        Returns
        -------
        Prediction
            With one system, on the CPU.

        Raises
        ------
        InputError
            If a value is not finite, shapes disagree, the charge is not an integer, an element is
            unknown, or two atoms coincide or are far too close.

        Warns
        -----
        UnknownChemistryWarning
            Once, if new atoms differ from all that the model was trained for.
        """
        batch = self._batch
        if batch and batch.same_numbers(system.numbers) and batch.same_charge(system.charge):
            batch = batch.with_box(system.cell, system.pbc).with_positions(system.positions)
        else:
            batch = system.check()
            self._look_at(batch)
        self._batch = batch
        return self.engine.evaluate(batch)

    def _look_at(self, batch: Batch) -> None:
        """Refuse other atoms that are far too close, and warn once of unknown chemistry."""
        check_distances(batch)
        domain = self.engine.known_domain
        if domain is not None and not self._has_warned and not batch.charge.any():
            self._has_warned = warn_of_unknown(batch, domain)

    def evaluate_many(self, systems: list[System]) -> Prediction:
        """Compute several systems in one batch; errors are those of `evaluate`."""
        return self.engine.evaluate(Batch.concatenate([system.check() for system in systems]))
