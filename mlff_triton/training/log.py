"""Rows of ``log.csv``, one per epoch."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

from mlff_triton.training.evaluation import Errors, mae
from mlff_triton.units import EV_PER_A3_TO_GPA


@dataclass(frozen=True)
class LogRow:
    """One line of ``log.csv``: the averaged weights after an epoch, in the validation set.

    Epoch 0 is the model before training. Errors are mean absolute errors: of energies per atom, of
    components of forces, of stresses, of partial charges, of the lengths of errors of dipoles, and
    of energies relative to the mean of a series. The last four are empty if none is known.
    """

    epoch: int
    step: int
    learning_rate: float
    train_loss: float
    valid_loss: float
    valid_energy_meV_per_atom: float  # noqa: N815
    valid_force_meV_per_A: float  # noqa: N815
    valid_stress_GPa: float  # noqa: N815
    valid_charge_e: float = math.nan
    valid_dipole_e_A: float = math.nan  # noqa: N815
    valid_relative_meV: float = math.nan  # noqa: N815

    @classmethod
    def of(cls, epoch: int, step: int, rate: float, train_loss: float, errors: Errors) -> LogRow:
        """Return the row of an epoch."""
        return cls(
            epoch,
            step,
            rate,
            train_loss,
            errors.loss,
            1000 * mae(errors.per_atom),
            1000 * mae(errors.forces),
            EV_PER_A3_TO_GPA * mae(errors.known_stress),
            mae(errors.known_charges),
            mae(errors.known_dipoles),
            1000 * mae(errors.relative),
        )

    def text(self) -> str:
        """Return the errors in words."""
        parts = {
            "meV/atom": self.valid_energy_meV_per_atom,
            "meV/Å": self.valid_force_meV_per_A,
            "GPa": self.valid_stress_GPa,
            "e": self.valid_charge_e,
            "e Å": self.valid_dipole_e_A,
            "meV in series": self.valid_relative_meV,
        }
        known = [f"{value:.3g} {unit}" for unit, value in parts.items() if value == value]
        return ", ".join(known)


def table(rows: Sequence[LogRow]) -> str:
    """Return the content of ``log.csv``."""
    lines = [",".join(field.name for field in dataclasses.fields(LogRow))]
    for row in rows:
        values = dataclasses.astuple(row)
        lines.append(",".join("" if value != value else f"{value:.8g}" for value in values))
    return "\n".join(lines) + "\n"
