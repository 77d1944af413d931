"""Check results against the exact module in float64."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.engine.implementations import Outcome, exact
from benchmarks.systems.systems import System
from mlff_triton.model.prediction import Prediction
from mlff_triton.model.tensornet import TensorNet

NET_FORCE = 1e-3  # relative to the largest force times the square root of the number of atoms


class GateError(Exception):
    """Results are wrong. ``error`` is the largest relative error of a force, if it is known."""

    def __init__(self, message: str, error: float | None = None) -> None:
        super().__init__(message)
        self.error = error


@dataclass(frozen=True)
class Truth:
    """True results, float64 on the CPU."""

    prediction: Prediction
    batch: Tensor

    @classmethod
    def of(cls, model: TensorNet, system: System, device: torch.device) -> Truth:
        """Compute the true results on the device under test."""
        result: Prediction = exact(model, system, device, torch.float64).step()
        fields = (result.energy, result.forces, result.virial, result.atom_energies)
        return cls(Prediction(*(t.cpu() for t in fields)), torch.from_numpy(system.batch))

    def check(self, outcome: Outcome, tolerance: float, *, stress: bool = False) -> float:
        """Return the largest error of a force over the largest true force.

        Raises
        ------
        GateError
            If an error is larger than the tolerance: that of the forces, that of an energy over the
            sum of its absolute atomic energies, or, with ``stress``, that of a virial.
        """
        true = self.prediction
        largest = float(true.forces.abs().max())
        error = float((_double(outcome.forces) - true.forces).abs().max()) / largest
        sums = torch.zeros_like(true.energy).index_add(0, self.batch, true.atom_energies.abs())
        energy = float(((_double(outcome.energy) - true.energy).abs() / sums).max())
        errors = {"forces": error, "energies": energy}
        if stress:
            if outcome.virial is None:
                raise GateError("there is no virial", error)
            # Virials cancel at equilibrium: the forces set their scale then.
            scale = max(float(true.virial.abs().max()), largest * len(true.forces) ** 0.5)
            errors["virials"] = float((_double(outcome.virial) - true.virial).abs().max()) / scale
        for name, value in errors.items():
            if not value <= tolerance:  # catches NaN too
                raise GateError(f"{name} are off by {value:.1e}, more than {tolerance:.0e}", error)
        return error


def check_plausible(outcome: Outcome) -> None:
    """Raise a `GateError` unless all results are finite and the forces sum to zero.

    This is the check of systems too large for the truth.
    """
    forces = _double(outcome.forces)
    if not (forces.isfinite().all() and _double(outcome.energy).isfinite().all()):
        raise GateError("some results are NaN or infinite")
    scale = float(forces.abs().max()) * len(forces) ** 0.5
    net = float(forces.sum(0).abs().max())
    if not net <= NET_FORCE * scale:
        raise GateError(f"the forces sum to {net:.1e} eV/Å instead of zero")


def _double(values: Tensor) -> Tensor:
    return values.detach().to("cpu", torch.float64)
