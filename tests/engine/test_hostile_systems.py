"""Absurd systems: loops for CPUs agree with plain PyTorch, refuse the same, and never crash."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch

from mlff_triton import Engine, Prediction
from mlff_triton.errors import MlffTritonError
from mlff_triton.testing import assert_close, assert_within, tolerance
from tests.support.tensornets import model_of

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")

CUTOFF = 3.5
WATER = np.array([[0, 0, 0.1], [0, 0.8, -0.5], [0, -0.8, -0.5]])
BOX = np.eye(3) * 9
ORDERS = {"energy": 0, "atom_energies": 0, "forces": 1, "virial": 1}

System = tuple[np.ndarray, np.ndarray, np.ndarray | None, bool]


def pair(distance: float) -> System:
    return np.array([8, 1]), np.array([[0, 0, 0], [0, 0, distance]]), None, False


def crowd(n_atoms: int, width: float, cell: np.ndarray | None = None) -> System:
    rng = np.random.default_rng(n_atoms)
    numbers, positions = rng.choice([1, 6, 7, 8], n_atoms), rng.uniform(0, width, (n_atoms, 3))
    return numbers, positions, cell, cell is not None


def water(shift: float = 0, stretch: float = 1, cell: np.ndarray | None = None) -> System:
    positions = WATER * [[1], [1], [stretch]] + shift
    return np.array([8, 1, 1]), positions, cell, cell is not None


SYSTEMS = {
    "no atoms": (np.zeros(0, int), np.zeros((0, 3)), None, False),
    "no atoms in a box": (np.zeros(0, int), np.zeros((0, 3)), BOX, True),
    "far from the origin": water(1e9),
    "a box far from the origin": water(1e9, cell=BOX),
    "too far from the origin": water(1e15),
    "a box too far from the origin": water(1e155, cell=BOX),
    "as far as numbers reach": water(1e300),
    "far apart": water(stretch=1e6),
    "too far apart": water(stretch=1e155),
    "infinite": water(np.inf),
    "not a number": water(np.nan, cell=BOX),
    "distance without a square": pair(1e-200),
    "denormal distance": pair(1e-310),
    "coinciding": pair(0),
    "below the first knot": pair(1e-3),
    "just within the cutoff": pair(np.nextafter(CUTOFF, 0)),
    "at the cutoff": pair(CUTOFF),
    "just beyond the cutoff": pair(np.nextafter(CUTOFF, 9)),
    "a crowd": crowd(70, 1.0),
    "a crowd in a tiny box": crowd(8, 1.0, np.eye(3)),
    "an unknown element": (np.array([8, 92]), *pair(1.0)[1:]),
    "an element that is none": (np.array([8, 2**40]), *pair(1.0)[1:]),
    "a negative element": (np.array([8, -1]), *pair(1.0)[1:]),
}


@cache
def engine_of(backend: str, dtype: str) -> Engine:
    model = model_of(num_layers=1, hidden_channels=16, num_rbf=6, cutoff_upper=CUTOFF)
    return Engine(model, "cpu", dtype, backend)


def outcome(engine: Engine, system: System) -> Prediction | tuple[type[Exception], str]:
    try:
        return engine.compute(*system)
    except MlffTritonError as error:
        return type(error), str(error)


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", SYSTEMS)
def test_outcomes_are_those_of_plain_pytorch(name, dtype):
    """Tables are less accurate below 0.5 Å, so that the exact module decides on errors alone."""
    expected = outcome(engine_of("torch", "float64"), SYSTEMS[name])
    found = outcome(engine_of("cpu", dtype), SYSTEMS[name])
    truth = outcome(engine_of("exact", "float64"), SYSTEMS[name])
    if isinstance(expected, tuple):
        assert found == expected
        assert isinstance(truth, tuple)
        assert truth[0] == expected[0]
        return
    assert isinstance(found, Prediction), found
    assert isinstance(truth, Prediction), truth
    # Where all atoms overlap, far larger terms cancel: float32 is off by up to 3e-5 of the result.
    slack = 10 if dtype == "float32" else 1
    for key, order in ORDERS.items():
        allowed = slack * tolerance(order, dtype)
        assert_within(getattr(found, key), getattr(expected, key), allowed, floor=1e-3)


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_one_engine_computes_whatever_comes_next():
    """More atoms, far more neighbors, fewer of both, and errors in between change nothing."""
    engine = engine_of("cpu", "float64")
    alone = {name: outcome(engine, system) for name, system in SYSTEMS.items()}
    again = {name: outcome(engine, system) for name, system in reversed(SYSTEMS.items())}
    for name, first in alone.items():
        if isinstance(first, tuple):
            assert again[name][0] == first[0]
        else:
            for key, tensor in first.tensors.items():
                assert torch.equal(again[name].tensors[key], tensor), (name, key)


def test_a_system_that_collapses():
    """From no neighbors to all, step by step, the neighbor list outgrows what it had."""
    numbers, positions, _, _ = crowd(60, 40.0)
    resident = engine_of("cpu", "float64").resident(numbers)
    for scale in (1.0, 0.5, 0.2, 0.05, 0.02, 1.0):
        energy, forces = resident.step(torch.tensor(positions * scale))
        expected = engine_of("torch", "float64").compute(numbers, positions * scale)
        assert_close(energy, expected.energy[0], 0)
        assert_close(forces, expected.forces, 1)
