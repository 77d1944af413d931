"""Simulations of TorchSim in this process. Nothing is logged or written."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from ase import units
from torch import Tensor

from benchmarks.dynamics.cases import FRICTION, TEMPERATURE, TIME_STEP
from benchmarks.dynamics.melted import FloatArray, Start
from benchmarks.engine.implementations import Outcome
from benchmarks.systems.systems import System
from mlff_triton.model.tensornet import TensorNet


class TorchSimSimulator:
    """A simulation of TorchSim's Langevin integrator with our model, of one or many systems."""

    def __init__(self, start: Start, network: TensorNet, device: torch.device) -> None:
        from mlff_triton.calculators import TorchSimModel

        self._start = start
        self._model = TorchSimModel(network, device=device, compute_stress=False)
        self._begin, self._step = _integrator(self._model)

    def reset(self) -> None:
        """Return to the start."""
        import torch_sim

        atoms = torch_sim.io.atoms_to_state(
            self._start.images(), self._model.device, self._model.dtype
        )
        self._state = self._begin(atoms)
        velocities = torch.from_numpy(self._start.velocities).to(self._state.positions)
        self._state.momenta = velocities * self._state.masses[:, None]

    def advance(self, steps: int) -> None:
        """Make steps, all of which are done once the device is."""
        for _ in range(steps):
            self._state = self._step(self._state)

    def state(self) -> tuple[FloatArray, FloatArray]:
        """Return positions and velocities."""
        velocities = self._state.momenta / self._state.masses[:, None]
        return _array(self._state.positions), _array(velocities)

    def evaluate(self, system: System) -> Outcome:
        """Return energies and forces at other positions."""
        self._state.positions = torch.from_numpy(system.positions).to(self._state.positions)
        results = self._model(self._state)
        return Outcome(results["energy"], results["forces"])


def _array(values: Tensor) -> FloatArray:
    return np.asarray(values.double().cpu().numpy())


def _integrator(model: Any) -> tuple[Any, Any]:
    """Return the functions that begin a simulation and make a step, in any version of TorchSim."""
    from torch_sim.integrators import nvt

    def tensor(value: float) -> Tensor:
        return torch.tensor(value, device=model.device, dtype=model.dtype)

    thermal = tensor(TEMPERATURE * units.kB)
    options = {
        "dt": tensor(TIME_STEP * units.fs),
        "kT": thermal,
        "gamma": tensor(FRICTION / (1000 * units.fs)),
    }
    if hasattr(nvt, "nvt_langevin"):  # before TorchSim 0.4
        return nvt.nvt_langevin(model, **options, seed=0)
    return (
        lambda state: nvt.nvt_langevin_init(state=state, model=model, kT=thermal),
        lambda state: nvt.nvt_langevin_step(state=state, model=model, **options),
    )
