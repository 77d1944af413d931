"""Steps on a GPU of a tiny model, and how their results are compared."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from ase import Atoms
from torch import Tensor

from mlff_triton.engine.batch import Batch
from mlff_triton.engine.device_steps import DeviceSteps
from mlff_triton.engine.engine import Engine
from mlff_triton.engine.motion import State
from mlff_triton.engine.parameters import Parameters
from mlff_triton.engine.steps import Units
from mlff_triton.kernels.tensornet.protocol import StepOperators
from mlff_triton.model.prediction import Prediction
from mlff_triton.model.tensornet import TensorNet
from mlff_triton.neighbors.box import FloatArray
from mlff_triton.testing import assert_close, random_crystal
from tests.support.tensornets import model_of, uncertain

CUTOFF, SKIN = 3.0, 0.5
ORDERS = {"energy": 0, "atom_energies": 0, "forces": 1, "virial": 1, "uncertainty": 1}
MakeSteps = Callable[..., DeviceSteps]


@cache
def model(num_layers: int = 1) -> TensorNet:
    small = {"hidden_channels": 32, "num_rbf": 8, "num_layers": num_layers}
    return uncertain(model_of(**small, cutoff_upper=CUTOFF), limit=None)


@cache
def parameters(device: str, dtype: torch.dtype) -> Parameters:
    return Parameters.of(model(), torch.device(device), dtype)


@cache
def truth() -> Engine:
    return Engine(model(), "cpu", "float64", "exact")


def maker(device: str, graphs: bool, operators: StepOperators) -> MakeSteps:
    """Return a function that makes steps of the tiny model."""

    def make(
        dtype: torch.dtype = torch.float64,
        skin: float = SKIN,
        wrap: Callable[[StepOperators], Any] = lambda operators: operators,
        **options: Any,
    ) -> DeviceSteps:
        model_and_device = parameters(device, dtype), CUTOFF, torch.device(device)
        return DeviceSteps(
            *model_and_device, dtype, skin, graphs, operators=wrap(operators), **options
        )

    return make


class Recording:
    """Operators that record the capacity of the neighbor matrix they are given."""

    def __init__(self, operators: StepOperators) -> None:
        self.operators = operators
        self.capacities: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.operators, name)

    def tensor_embedding(self, *arguments: Any) -> tuple[Tensor, Tensor]:
        edges = arguments[-1]
        self.capacities.append(len(edges.senders) // len(edges.slot_begin))
        return self.operators.tensor_embedding(*arguments)


class Failing:
    """Operators that run out of memory while `failing` is True."""

    def __init__(self, operators: StepOperators) -> None:
        self.operators = operators
        self.failing = True

    def __getattr__(self, name: str) -> Any:
        if self.failing:
            raise torch.OutOfMemoryError
        return getattr(self.operators, name)


def batch_of(*systems: Atoms, charge: object = None) -> Batch:
    return Batch.of(
        np.concatenate([a.numbers for a in systems]),
        np.concatenate([a.positions for a in systems]),
        np.stack([a.cell.array for a in systems]),
        np.stack([a.pbc for a in systems]),
        np.repeat(np.arange(len(systems)), [len(a) for a in systems]),
        charge,
    )


def assert_true(found: Prediction, batch: Batch, dtype: torch.dtype = torch.float64) -> None:
    expected = truth().evaluate(batch)
    for name, order in ORDERS.items():
        floor = 1e-2 * order  # forces between atoms near the cutoff, or without neighbors, are tiny
        assert_close(getattr(found, name), getattr(expected, name), order, dtype, floor=floor)


def assert_equal(found: Prediction, expected: Prediction) -> None:
    for name, tensor in found.tensors.items():
        assert torch.equal(tensor, getattr(expected, name)), name


def check(steps: DeviceSteps, *systems: Atoms, charge: object = None) -> None:
    batch = batch_of(*systems, charge=charge)
    assert_true(steps.evaluate(batch), batch, steps.dtype)


def moved(atoms: Atoms, shifts: object) -> Atoms:
    copy = atoms.copy()
    copy.positions += shifts
    return copy


def crystal(n_atoms: int, kind: str) -> Atoms:
    """Return a crystal with few images, as the interpreter is slow."""
    return random_crystal(n_atoms, kind, min_distance=2.0)


def squeezed(atoms: Atoms, strain: object) -> Atoms:
    copy = atoms.copy()
    copy.set_cell(atoms.cell.array @ (np.eye(3) + strain), scale_atoms=True)
    return copy


class Resident:
    """Steps of a resident system, compared to the bit with those of batches in other steps."""

    def __init__(
        self, make: MakeSteps, atoms: Atoms, dtype: torch.dtype = torch.float64, **options: Any
    ) -> None:
        self.steps, self.others = make(dtype, **options), make(dtype)
        self.run = self.steps.resident(batch_of(atoms), Units())

    def tensor(self, array: np.ndarray) -> Tensor:
        return torch.tensor(array, device=self.steps.device)

    def check(self, atoms: Atoms, cell: bool = True) -> None:
        box = self.tensor(atoms.cell.array) if cell else None
        energy, forces = self.run(self.tensor(atoms.positions), box)
        expected = self.others.evaluate(batch_of(atoms))
        assert (energy.shape, energy.device.type) == ((), "cpu")
        assert forces.device.type == self.steps.device.type
        assert torch.equal(energy, expected.energy[0])
        assert torch.equal(forces.cpu(), expected.forces)


def at_start(positions: FloatArray, velocities: FloatArray, cell: FloatArray) -> State:
    """Return a state before the first step; arguments are its attributes."""
    return State(0, positions, velocities, cell, np.zeros(len(positions)), np.zeros(len(cell)))
