"""Right first, then fast: outcomes against the exact module in float64."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.engine.implementations import Outcome, exact
from benchmarks.systems.systems import System
from mlff_triton.model.prediction import Prediction
from mlff_triton.model.tensornet import TensorNet

NET_FORCE = 1e-3  # of the largest force times the root of the number of atoms


class GateError(Exception):
    """Results are wrong; the message says how, ``error`` is the largest relative one of forces."""

    def __init__(self, message: str, error: float | None = None) -> None:
        super().__init__(message)
        self.error = error


@dataclass(frozen=True)
class Truth:
    """What is right, on the CPU in float64."""

    prediction: Prediction
    batch: Tensor

    @classmethod
    def of(cls, model: TensorNet, system: System, device: torch.device) -> Truth:
        """Compute it, on the device that is measured."""
        result: Prediction = exact(model, system, device, torch.float64).step()
        fields = (result.energy, result.forces, result.virial, result.atom_energies)
        return cls(Prediction(*(t.cpu() for t in fields)), torch.from_numpy(system.batch))

    def check(self, outcome: Outcome, tolerance: float, *, stress: bool = False) -> float:
        """The largest error of a force over the largest true force.

        Raises
        ------
        GateError
            If it, or the error of an energy over the sum of its atoms' energies, or with
            ``stress`` that of a virial, is larger than the tolerance.
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
            # Virials cancel at equilibrium: their scale is that of the forces, then.
            scale = max(float(true.virial.abs().max()), largest * len(true.forces) ** 0.5)
            errors["virials"] = float((_double(outcome.virial) - true.virial).abs().max()) / scale
        for name, value in errors.items():
            if not value <= tolerance:  # NaN too
                raise GateError(f"{name} are off by {value:.1e}, allowed is {tolerance:.0e}", error)
        return error


def check_plausible(outcome: Outcome) -> None:
    """Raise a `GateError` unless all is finite and forces add up to nothing.

    For systems that are too large for the truth.
    """
    forces = _double(outcome.forces)
    if not (forces.isfinite().all() and _double(outcome.energy).isfinite().all()):
        raise GateError("there are NaN or infinite results")
    scale = float(forces.abs().max()) * len(forces) ** 0.5
    net = float(forces.sum(0).abs().max())
    if not net <= NET_FORCE * scale:
        raise GateError(f"the forces add up to {net:.1e} eV/Å")


def _double(values: Tensor) -> Tensor:
    return values.detach().to("cpu", torch.float64)
