"""Resident systems: the same results as computations through the CPU."""

from __future__ import annotations

import threading
from functools import cache

import numpy as np
import pytest
import torch
from ase import Atoms
from torch import Tensor

from mlff_triton.engine.engine import Engine
from mlff_triton.engine.resident_system import ResidentSystem
from mlff_triton.errors import InputError, OverlappingAtomsError, UnknownElementError
from mlff_triton.model.prediction import Ensemble
from mlff_triton.testing import random_cluster, random_crystal, water_box
from tests.support.tensornets import model_of

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")

SMALL = {"num_layers": 1, "hidden_channels": 32, "num_rbf": 6}
ON_GPU = pytest.param("cuda", "triton-graph", marks=pytest.mark.gpu)
BACKENDS = [
    ("cpu", "torch"),
    ("cpu", "cpu"),
    ("cpu", "exact"),
    pytest.param("cuda", "torch", marks=pytest.mark.gpu),
    pytest.param("cuda", "triton", marks=pytest.mark.gpu),
    ON_GPU,
]
backends = pytest.mark.parametrize(("device", "backend"), BACKENDS)


@cache
def engine_of(device: str, backend: str, dtype: str = "float64", members: int = 1) -> Engine:
    models = [model_of(**SMALL) for _ in range(members)]
    for shift, model in enumerate(models):
        model.mean += shift
    model = models[0] if members == 1 else Ensemble(models)
    return Engine(model, device, dtype, backend)


def resident_of(engine: Engine, atoms: Atoms, charge: int = 0) -> ResidentSystem:
    return engine.resident(atoms.numbers, atoms.cell.array, atoms.pbc, charge)


def tensor(engine: Engine, array: np.ndarray) -> Tensor:
    return torch.tensor(array, device=engine.device)


def check(engine: Engine, system: ResidentSystem, atoms: Atoms, charge: int = 0) -> None:
    cell = tensor(engine, atoms.cell.array) if atoms.pbc.any() else None
    energy, forces = system.step(tensor(engine, atoms.positions), cell)
    expected = engine.compute(
        atoms.numbers, atoms.positions, atoms.cell.array, atoms.pbc, charge=charge
    )
    assert torch.equal(energy, expected.energy[0].cpu())
    assert torch.equal(forces, expected.forces.double())


@backends
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("members", [1, 2])
def test_steps_equal_computations(device, backend, dtype, members):
    engine = engine_of(device, backend, dtype, members)
    for atoms, charge in ((random_cluster(9), 1), (random_crystal(9, "slab"), 0)):
        system = resident_of(engine, atoms, charge)
        for seed in range(3):
            atoms.rattle(0.1, seed=seed)
            atoms.set_cell(1.01 * atoms.cell.array, scale_atoms=True)
            check(engine, system, atoms, charge)


@backends
def test_the_last_cell_is_kept(device, backend):
    engine, atoms = engine_of(device, backend), random_crystal(9, "triclinic")
    system = resident_of(engine, atoms)
    positions, cell = (tensor(engine, a) for a in (atoms.positions, atoms.cell.array))
    made_with, given = system.step(positions), system.step(positions, 1.02 * cell)
    kept = system.step(positions)
    assert torch.equal(made_with[1], system.step(positions, cell)[1])
    assert torch.equal(given[1], kept[1])
    assert not torch.equal(made_with[1], given[1])


@backends
def test_what_comes_where(device, backend):
    engine, atoms = engine_of(device, backend, "float32"), random_cluster(5)
    system = resident_of(engine, atoms)
    positions = torch.tensor(atoms.positions, dtype=torch.float32)  # on the CPU, so they are copied
    energy, forces = system.step(positions.requires_grad_())
    assert (energy.shape, energy.dtype, energy.device.type) == ((), torch.float64, "cpu")
    assert (forces.shape, forces.dtype, forces.device.type) == ((5, 3), torch.float32, device)
    assert not energy.requires_grad
    assert not forces.requires_grad


@backends
def test_any_thread_may_step(device, backend):
    engine, atoms = engine_of(device, backend), random_cluster(9)
    system = resident_of(engine, atoms)
    positions = tensor(engine, atoms.positions)
    expected, found = system.step(positions), []

    def work() -> None:
        found.extend(system.step(positions) for _ in range(3))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 9
    assert all(torch.equal(forces, expected[1]) for _, forces in found)


@backends
def test_what_cannot_be_is_refused_at_once(device, backend):
    engine = engine_of(device, backend)
    with pytest.raises(UnknownElementError, match="does not know Au"):
        engine.resident([6, 79])
    with pytest.raises(InputError, match="charge must be an integer"):
        engine.resident([6, 8], charge=0.5)
    with pytest.raises(InputError, match="no independent cell vector"):
        engine.resident([6, 8], pbc=True)
    with pytest.raises(InputError, match="there are no atoms"):
        engine.resident([])


@backends
def test_steps_that_cannot_be_are_refused(device, backend):
    engine, atoms = engine_of(device, backend), random_crystal(3, "triclinic")
    system = resident_of(engine, atoms)
    positions, cell = (tensor(engine, a) for a in (atoms.positions, atoms.cell.array))
    with pytest.raises(InputError, match=r"3 atoms need positions \[3, 3\], not \[2, 3\]"):
        system.step(positions[:2], cell)
    with pytest.raises(InputError, match=r"the cell must have shape \[3, 3\], not \[3\]"):
        system.step(positions, cell[0])
    with pytest.raises(InputError, match="NaN or inf"):
        system.step(positions, cell * np.nan)
    with pytest.raises(InputError, match=r"not finite|NaN or infinite"):
        system.step(positions * np.inf, cell)
    with pytest.raises(OverlappingAtomsError):
        system.step(0 * positions, cell)
    check(engine, system, atoms)


def test_neutral_models_refuse_charges():
    with pytest.raises(InputError, match="neutral systems"):
        Engine("default", "cpu").resident([8, 1, 1], charge=1)


@pytest.mark.gpu
def test_a_barostat_on_the_gpu():
    """Cell and atoms of water change in each of a hundred steps."""
    engine, atoms = Engine("default", "cuda"), water_box(64)
    fresh = Engine("default", "cuda")
    system = resident_of(engine, atoms)
    rng = np.random.default_rng(0)
    for _ in range(100):
        strain = rng.normal(0, 0.003, (3, 3))
        atoms.set_cell(atoms.cell.array @ (np.eye(3) + strain), scale_atoms=True)
        atoms.positions += rng.normal(0, 0.02, (192, 3))
        cell = tensor(engine, atoms.cell.array)
        energy, forces = system.step(tensor(engine, atoms.positions), cell)
        expected = fresh.compute(atoms.numbers, atoms.positions, atoms.cell.array, True)
        assert torch.equal(energy, expected.energy[0].cpu())
        assert torch.equal(forces, expected.forces)
    assert engine.n_builds < 100
