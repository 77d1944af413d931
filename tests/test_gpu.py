"""The exact module on a GPU against itself in float64 on the CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ase import Atoms

from mlff_triton import TensorNetCalculator
from mlff_triton.testing import (
    assert_close,
    assert_within,
    check_calculator,
    random_cluster,
    random_crystal,
    tolerance,
    water_box,
)

pytestmark = pytest.mark.gpu

# Sums over neighbors use atomics on a GPU, so two calculations agree to rounding, not to the bit.
BITWISE = (
    "changes_are_noticed",
    "nan_is_refused",
    "new_calculators_agree",
    "other_atoms_leave_no_trace",
)

SYSTEMS = {
    "one atom": Atoms("O"),
    "cluster": random_cluster(33),
    "triclinic": random_crystal(30, "triclinic"),
    "two atoms in a small cell": random_crystal(2, "small"),
    "slab": random_crystal(30, "slab"),
    "water": water_box(64),
}


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gpu_agrees_with_float64_on_the_cpu(name: str, dtype: str) -> None:
    truth = TensorNetCalculator(device="cpu", dtype="float64")
    ours = TensorNetCalculator(device="cuda", dtype=dtype)
    (expected,) = truth.calculate_many([SYSTEMS[name]])
    (actual,) = ours.calculate_many([SYSTEMS[name]])
    assert_close(actual["energies"], expected["energies"], 0, dtype)
    if name != "one atom":
        assert_close(actual["forces"], expected["forces"], 1, dtype)
    if "stress" in expected:
        # Near equilibrium the stress is a small difference of large virials: theirs is the scale.
        atoms = SYSTEMS[name]
        virial = len(atoms) * np.abs(expected["forces"]).max() / atoms.get_volume()  # times 1 Å
        allowed = tolerance(1, dtype)
        assert_within(actual["stress"], expected["stress"], allowed, floor=virial)


@pytest.mark.parametrize("name", ["cluster", "triclinic"])
def test_calculator_on_the_gpu_conforms(name: str) -> None:
    check_calculator(
        lambda: TensorNetCalculator(device="cuda", dtype="float64"),
        SYSTEMS[name],
        dtype="float64",
        cutoff=5.0,
        skip=BITWISE,
    )


def test_auto_takes_the_gpu() -> None:
    assert TensorNetCalculator().session.engine.device.type == "cuda"


def test_results_leave_no_memory_behind() -> None:
    calculator = TensorNetCalculator(device="cuda")
    atoms = water_box(64)
    sizes = []
    for step in range(5):
        atoms.rattle(1e-3, seed=step)
        calculator.get_forces(atoms)
        sizes.append(torch.cuda.memory_allocated())
    assert sizes[-1] <= sizes[1]
