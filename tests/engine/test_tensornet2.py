"""The engine with models of partial charges: its one backend, batches, and boxes."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from ase import Atoms
from torch import Tensor

from mlff_triton import Engine, Ensemble, Prediction
from mlff_triton.engine.dispatch import choose, explain, rank
from mlff_triton.errors import BackendError, InputError
from mlff_triton.model.prediction import members_of
from mlff_triton.testing import assert_close, random_cluster, random_crystal
from tests.model.test_tensornet import evaluate
from tests.support.charged import charged_model
from tests.support.tensornets import model_of

CPU, GPU = torch.device("cpu"), torch.device("cuda")  # nothing is computed on the GPU
CRYSTAL = random_crystal(40, "triclinic", seed=2)  # 5.7 Å high


def compute(engine: Engine, atoms: Atoms, **options: object) -> Prediction:
    return engine.compute(atoms.numbers, atoms.positions, atoms.cell.array, atoms.pbc, **options)


def assert_same(found: Prediction, expected: Prediction) -> None:
    assert found.tensors.keys() == expected.tensors.keys()
    for name, tensor in expected.tensors.items():
        assert_close(found.tensors[name], tensor, 1, floor=1.0)


@pytest.mark.parametrize("device", [CPU, GPU], ids=str)
def test_auto_takes_kernels_on_a_gpu_and_loops_on_a_cpu(device):
    model = charged_model(hidden_channels=32)
    best = "triton-graph" if device.type == "cuda" else "cpu"
    mixed = Ensemble([model, model_of(hidden_channels=32).double()])
    for one in (model, mixed):
        assert choose("auto", members_of(one), device, torch.float32) == best
        assert f"{best:<12}  taken" in explain(one, device)
    assert all(c.ms is None for c in rank([model], device, torch.float32))
    assert "no times: TensorNet2, F = 32, layers = 1, float32 has not" in explain(model, device)
    other = charged_model(hidden_channels=48)  # not of the kernels
    assert choose("auto", [other], device, torch.float32) == (
        "exact" if device.type == "cuda" else "cpu"
    )


@pytest.mark.parametrize("backend", ["torch", "cpu", "triton", "triton-graph"])
def test_models_without_self_loops_or_layers_are_refused(backend):
    for changes, reason in (({"self_loops": False}, "self-loops"), ({"num_layers": 0}, "layer")):
        with pytest.raises(BackendError, match=rf"needs a .*{reason}; use backend='exact'"):
            Engine(charged_model(**changes), "cpu", backend=backend)


@pytest.mark.parametrize(
    ("device", "backend"),
    [
        *((("cpu", backend)) for backend in ("exact", "cpu", "torch")),
        *(pytest.param("cuda", backend, marks=pytest.mark.gpu) for backend in ("exact", "torch")),
    ],
)
@pytest.mark.parametrize("changes", [{"repulsion": True}, {"coulomb_cutoff": 2.8}], ids=str)
def test_engine_predicts_charges(device, backend, changes):
    model, atoms = charged_model(**changes), random_cluster(9)
    engine = Engine(model, device, "float64", backend)
    assert (engine.backend, engine.has_charges, engine.is_local) == (backend, True, False)
    found = compute(engine, atoms, charge=-1).map(Tensor.cpu)
    assert_same(found, evaluate(model, atoms, charge=[-1.0]))
    assert_close(found.charges.sum(), torch.tensor(-1.0).double(), 0, torch.float32)
    again = compute(pickle.loads(pickle.dumps(engine)), atoms, charge=-1)
    assert_same(again.map(Tensor.cpu), found)


def test_other_engines_have_none():
    local = Engine(model_of(), "cpu", "float64")
    assert (local.has_charges, local.is_local) == (False, True)
    assert compute(local, random_cluster(3)).charges is None


def test_batches_of_charged_systems():
    model = charged_model(coulomb_cutoff=2.8)
    engine = Engine(model, "cpu", "float64")
    images, charges = (
        [random_cluster(6), Atoms("O"), CRYSTAL, random_cluster(4, seed=5)],
        [1, 0, -1, 2],
    )
    found = engine.compute(
        np.concatenate([a.numbers for a in images]),
        np.concatenate([a.positions for a in images]),
        np.stack([a.cell.array for a in images]),
        np.stack([a.pbc for a in images]),
        np.repeat(np.arange(4), [len(a) for a in images]),
        charges,
    )
    assert_same(found, evaluate(model, *images, charge=[float(q) for q in charges]))


def test_trajectories_reuse_one_list_and_agree_with_fresh_ones(rng):
    for changes, n_builds in (({}, 1), ({"coulomb_cutoff": 6.0}, 1)):
        model, atoms = charged_model(**changes), random_cluster(8)
        engine = Engine(model, "cpu", "float64", skin=2.0)
        for _ in range(5):
            atoms.positions += rng.normal(0, 0.05, (8, 3))
            assert_same(compute(engine, atoms), evaluate(model, atoms))
        assert engine.n_builds == n_builds


def test_ensembles_average_charges():
    members = [charged_model(seed=k, coulomb_cutoff=3.0 + k) for k in range(2)]
    atoms = random_cluster(6)
    found = compute(Engine(Ensemble(members), "cpu", "float64"), atoms)
    assert_same(found, Prediction.mean([evaluate(m, atoms) for m in members]))
    mixed = Engine(Ensemble([members[0], model_of()]), "cpu", "float64")
    assert compute(mixed, atoms).charges is None


def test_boxes_need_a_cutoff_that_fits():
    with pytest.raises(InputError, match="cannot be periodic: drop the cell, or choose"):
        compute(Engine(charged_model(), "cpu"), CRYSTAL)
    with pytest.raises(InputError, match="less than twice the Coulomb cutoff of 9 Å"):
        compute(Engine(charged_model(coulomb_cutoff=9.0), "cpu"), CRYSTAL)
    vacuum = CRYSTAL.copy()
    vacuum.pbc = False
    assert compute(Engine(charged_model(coulomb_cutoff=9.0), "cpu"), vacuum).charges is not None


def test_resident_systems_check_each_box():
    system = Engine(charged_model(coulomb_cutoff=2.5), "cpu", "float64").resident(
        CRYSTAL.numbers, CRYSTAL.cell.array, True, charge=1
    )
    positions = torch.tensor(CRYSTAL.positions)
    energy, forces = system.step(positions)
    expected = evaluate(charged_model(coulomb_cutoff=2.5), CRYSTAL, charge=[1.0])
    assert_close(energy, expected.energy[0], 0)
    assert_close(forces, expected.forces, 1)
    with pytest.raises(InputError, match="less than twice"):
        system.step(positions, torch.tensor(CRYSTAL.cell.array) * 0.8)


def test_queued_tensors_have_charges():
    engine, atoms = Engine(charged_model(), "cpu", "float64"), random_cluster(5)
    found = engine.queue(
        torch.tensor(atoms.numbers),
        torch.tensor(atoms.positions),
        torch.zeros(1, 3, 3),
        False,
        torch.zeros(5, dtype=torch.int64),
        torch.tensor([2.0]),
    )
    assert_same(found, evaluate(charged_model(), atoms, charge=[2.0]))


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["triton", "triton-graph"])
def test_systems_are_not_divided_on_gpus(backend):
    engine = Engine(charged_model(hidden_channels=32), "cuda", backend=backend)
    with pytest.raises(BackendError, match=r'not local: .* with backend="cpu" or "torch"'):
        engine.part()
