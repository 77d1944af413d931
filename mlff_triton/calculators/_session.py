"""An engine that evaluates one system again and again: the common part of all front ends."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from numpy.typing import ArrayLike

from mlff_triton.calculators._plausibility import Plausibility
from mlff_triton.checkpoints import loaded
from mlff_triton.checkpoints.dispersion import warn_of_dispersion
from mlff_triton.dispersion.correction import Dispersion
from mlff_triton.dispersion.damping import damping_of
from mlff_triton.engine.batch import Batch
from mlff_triton.engine.engine import Engine
from mlff_triton.model.prediction import Ensemble, Prediction
from mlff_triton.model.tensornet import TensorNet
from mlff_triton.model.tensornet2 import with_coulomb


class System(NamedTuple):
    """One system, as given by a user.

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
        """Return a batch of this system, with the errors of `Batch.of`."""
        numbers, positions, cell, pbc, charge = self
        return Batch.of(numbers, positions, cell, pbc, charge=charge)


class Session:
    """An engine and its last system; only the parts that change are checked again.

    Parameters
    ----------
    model, device, dtype, backend, skin
        Same as for `mlff_triton.engine.engine.Engine`.
    coulomb : str, optional
        Coulomb energy of a model with partial charges, as for `mlff_triton.load_model`.
    dispersion : str, optional
        Correction to add, see `mlff_triton.dispersion.correction.Dispersion`.

    Attributes
    ----------
    engine : Engine
        Computes the model.
    plausibility : Plausibility
        Judges structures and results.
    dispersion : Dispersion or None
        The correction.
    """

    def __init__(
        self,
        model: TensorNet | Ensemble | str | Path,
        device: str | torch.device = "auto",
        dtype: str | torch.dtype = "float32",
        backend: str = "auto",
        skin: float | str = "auto",
        coulomb: str | None = None,
        dispersion: str | None = None,
    ) -> None:
        if dispersion is not None:
            damping_of(dispersion)  # a wrong name fails early
        chosen = model if coulomb is None else with_coulomb(loaded(model), coulomb)
        self.engine = Engine(chosen, device, dtype, backend, skin=skin)
        self.dispersion: Dispersion | None = None
        if dispersion is not None:
            self.dispersion = Dispersion(dispersion, self.engine.device, self.engine.dtype)
            warn_of_dispersion(model, self.dispersion.method)
        self._batch: Batch | None = None
        self.plausibility = Plausibility.of(self.engine)

    @property
    def last(self) -> Batch | None:
        """Last system that `evaluate` was given, a new object after each call."""
        return self._batch

    def changes(self, system: System) -> list[str]:
        """Return which fields of a system differ from the last one; the box counts as the cell."""
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

    def evaluate(self, system: System, *, of_atoms: bool = True) -> Prediction:
        """Compute energy, forces and virial of one system.

        Parameters
        ----------
        system : System
            Positions in float64 are kept, not copied, until the next call.
        of_atoms : bool
            If False, energies of atoms are not needed, and are NaN if there is dispersion.

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
            Once, if new atoms differ from all that the model was trained for, or the model expects
            a larger error in the force on an atom than usual.
        """
        last = self._batch
        if last and last.same_numbers(system.numbers) and last.same_charge(system.charge):
            batch = last.with_box(system.cell, system.pbc).with_positions(system.positions)
            is_new = bool((batch.boxes[0].pbc != last.boxes[0].pbc).any())  # has other neighbors
        else:
            batch, is_new = system.check(), True
        if is_new:
            self.plausibility.check(batch)
        self._batch = batch
        return self._evaluate(batch, of_atoms=of_atoms)

    def evaluate_many(self, systems: list[System]) -> Prediction:
        """Compute several systems in one batch, with the errors and warnings of `evaluate`.

        Energies of atoms are NaN if there is dispersion.
        """
        return self._evaluate(self.batch_of(systems), of_atoms=False)

    def _evaluate(self, batch: Batch, *, of_atoms: bool) -> Prediction:
        prediction = self.engine.evaluate(batch)
        self.plausibility.judge(batch, prediction)
        if self.dispersion is None:
            return prediction
        return self.dispersion.added(batch, prediction, of_atoms=of_atoms)

    def batch_of(self, systems: list[System]) -> Batch:
        """Return a batch of systems, with the errors and warnings of `evaluate`.

        Of several systems with the same atoms, only the first one is checked for plausibility.
        """
        batches = [system.check() for system in systems]
        for batch in batches:
            self.plausibility.check_new(batch)
        return Batch.concatenate(batches)
