"""Parts of a TensorNet2 on a GPU, which exchange tensors, charges and sums.

Without a GPU, the network is computed in plain PyTorch, except where a test says otherwise.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import pytest
import torch

from mlff_triton import Engine, TensorNet2
from mlff_triton.engine.device_steps import DeviceSteps
from mlff_triton.engine.parameters import Parameters
from mlff_triton.kernels.tensornet import operators as fused
from mlff_triton.kernels.tensornet.reference import operators as plain
from mlff_triton.kernels.tensornet2 import operators as charged
from mlff_triton.kernels.tensornet2.reference import operators as plain_charged
from mlff_triton.testing import random_crystal
from tests.support.charged import charged_model, crystal
from tests.support.device_parts import NAMES, compute_together, set_atoms, step
from tests.support.exchanges import Board, BoardExchange, Echo
from tests.support.parts import assert_whole, divide, slabs, sum_of_parts
from tests.support.tensornets import uncertain

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:the cell has the charge"),
    pytest.mark.filterwarnings("ignore:each cell of the slab has the charge"),
]

MODELS = {
    "one cutoff": {"coulomb_cutoff": 2.5, "cutoff_upper": 3.0},
    "a longer Coulomb cutoff": {"coulomb_cutoff": 4.0, "cutoff_upper": 3.0},
    "a mesh": {"coulomb_cutoff": 4.6, "cutoff_upper": 3.0, "pme_error": 1e-2},
}


@cache
def model(name: str) -> TensorNet2:
    return uncertain(charged_model(hidden_channels=32, **MODELS[name]))


def check(found, atoms, parts, name, dtype, charge):
    results = iter(found)
    sums = sum_of_parts(lambda *_: next(results), atoms, parts)
    exact = Engine(model(name), "cpu", "float64", "exact")
    whole = exact.compute(
        atoms.numbers, atoms.positions, atoms.cell.array, atoms.pbc, charge=charge
    )
    assert_whole(sums, whole, dtype)


@pytest.fixture
def new_steps(device, graphs):
    """Return a function that makes steps whose network runs in kernels on a GPU, or if told so."""

    def make(name, dtype=torch.float64, *, kernels=False) -> DeviceSteps:
        options = {"operators": plain, "charged_operators": plain_charged}
        if device == "cuda" or kernels:
            options = {"operators": fused, "charged_operators": charged}
        p = Parameters.of(model(name), torch.device(device), dtype)
        return DeviceSteps(p, p.cutoff, torch.device(device), dtype, 0.5, graphs, **options)

    return make


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("charge", [0, 1])
def test_parts_add_up(new_steps, name, charge):
    steps, atoms = [new_steps(name) for _ in range(2)], crystal()
    reach = steps[0].exchange_reach
    assert reach == max(3.0, MODELS[name]["coulomb_cutoff"])
    parts = divide(atoms, slabs(atoms, 2), reach, 2)
    found = compute_together(steps, atoms, parts, unused=3, charge=charge)
    check(found, atoms, parts, name, torch.float64, charge)


def test_slabs_that_become_thicker(new_steps):
    """The mesh of all parts follows the atoms of one of them."""
    name, atoms = "a mesh", random_crystal(24, "slab")
    steps = [new_steps(name) for _ in range(2)]
    parts, board = divide(atoms, slabs(atoms, 2), steps[0].exchange_reach, 2), Board(2)

    def compute(k):
        with board.turn():
            device_part = steps[k].part(1.0)
            set_atoms(device_part, atoms, parts[k], BoardExchange(board, k, parts))
            return [step(device_part, each, parts[k]) for each in images]

    thicker = atoms.copy()
    thicker.positions[parts[0].index[0], 2] += 40.0
    images = atoms, thicker
    with ThreadPoolExecutor(2) as pool:
        found = zip(*pool.map(compute, range(2)), strict=True)
    for each, results in zip(images, found, strict=True):
        check(results, each, parts, name, torch.float64, 1)


@pytest.mark.parametrize("name", ["a longer Coulomb cutoff", "a mesh"])
def test_fused_kernels(new_steps, dtype, name):
    """Kernels read no tensor of an atom beyond the cutoff of the network."""
    atoms = crystal()
    steps = [new_steps(name, dtype, kernels=True) for _ in range(2)]
    parts = divide(atoms, slabs(atoms, 2), steps[0].exchange_reach, 2)
    check(compute_together(steps, atoms, parts, near=3.0), atoms, parts, name, dtype, 0)


def test_tensors_of_atoms_beyond_the_network_are_not_sent(new_steps):
    name, atoms = "a longer Coulomb cutoff", crystal()
    steps = [new_steps(name) for _ in range(2)]
    assert steps[0].tensor_reach == 3.0
    parts = divide(atoms, slabs(atoms, 2), steps[0].exchange_reach, 2)
    for near, is_finite in ((3.0, True), (2.0, False)):
        found = compute_together(steps, atoms, parts, unused=3, near=near)
        assert all(np.isfinite(each.energy) == is_finite for each in found)
        if is_finite:
            check(found, atoms, parts, name, torch.float64, 0)


@pytest.mark.parametrize("name", MODELS)
def test_moving_atoms_in_graphs(new_steps, name):
    steps, atoms = new_steps(name), crystal().copy()
    (part,) = divide(atoms, slabs(atoms, 1), steps.exchange_reach + 1.0, 1)
    device_part = steps.part(0.0)
    set_atoms(device_part, atoms, part, Echo(part, 20, 2))
    for seed in range(4):
        check([step(device_part, atoms, part)], atoms, [part], name, torch.float64, 0)
        atoms.rattle(0.05, seed=seed)


@pytest.mark.parametrize("name", ["a longer Coulomb cutoff", "a mesh"])
def test_steps_repeat_to_the_bit(new_steps, name):
    atoms, found = crystal(), []
    for _ in range(2):
        steps = new_steps(name, torch.float32)
        (part,) = divide(atoms, slabs(atoms, 1), steps.exchange_reach, 1)
        device_part = steps.part(0.0)
        set_atoms(device_part, atoms, part, Echo(part, 20, 2))
        found += [step(device_part, atoms, part) for _ in range(2)]
    for other in found[1:]:
        for key in NAMES:
            np.testing.assert_array_equal(getattr(other, key), getattr(found[0], key))


def test_a_coulomb_energy_without_a_cutoff_has_no_exchange(device):
    steps = DeviceSteps(
        Parameters.of(charged_model(hidden_channels=32), torch.device(device), torch.float64),
        4.5,
        torch.device(device),
        torch.float64,
        0.5,
        False,
        operators=plain,
        charged_operators=plain_charged,
    )
    assert steps.exchange_reach is None
