"""The engine on the CPU: agreement of its backends, inputs, and guarantees."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial

import numpy as np
import pytest
import torch
from ase import Atoms

from mlff_triton import save_model
from mlff_triton._common.devices import find_device
from mlff_triton.engine import engine as engine_module
from mlff_triton.engine.engine import Engine
from mlff_triton.errors import (
    BackendError,
    CheckpointError,
    InputError,
    OverlappingAtomsError,
    UnknownElementError,
)
from mlff_triton.model.config import ZBLConfig
from mlff_triton.model.prediction import Ensemble, Prediction
from mlff_triton.testing import assert_close, random_cluster, random_crystal, water_box
from tests.support.tensornets import model_of

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")

SEQUENCES = ("cpu", "torch")
HOST_BACKENDS = (*SEQUENCES, "exact")
SMALL = {"num_layers": 1, "hidden_channels": 16, "num_rbf": 6}
WATER = [8, 1, 1], [[0.0, 0.0, 0.1], [0.0, 0.8, -0.5], [0.0, -0.8, -0.5]]
SYSTEMS = {
    "one atom": Atoms("O"),
    "molecule": random_cluster(12),
    "two atoms far apart": Atoms("CO", [[0, 0, 0], [50, 0, 0]]),
    "cubic": random_crystal(20, "cubic"),
    "triclinic": random_crystal(15, "triclinic"),
    "less than the cutoff": random_crystal(2, "small"),
    "slab": random_crystal(12, "slab"),
    "rod": random_crystal(9, "rod"),
    "water": water_box(8),
}
CHARGES = [1, 0, 0, -2, 0, 0, 1, 0, 0]


@cache
def engine_of(backend: str, dtype: str = "float64") -> Engine:
    return Engine(model_of(), "cpu", dtype, backend)


def compute(engine: Engine, atoms: Atoms, charge: int = 0) -> Prediction:
    return engine.compute(atoms.numbers, atoms.positions, atoms.cell.array, atoms.pbc, None, charge)


def compute_all(engine: Engine) -> Prediction:
    systems = list(SYSTEMS.values())
    return engine.compute(
        np.concatenate([a.numbers for a in systems]),
        np.concatenate([a.positions for a in systems]),
        np.stack([a.cell.array for a in systems]),
        np.stack([a.pbc for a in systems]),
        np.repeat(np.arange(len(systems)), [len(a) for a in systems]),
        CHARGES,
    )


def assert_same(actual: Prediction, expected: Prediction, dtype: str) -> None:
    orders = {"energy": 0, "atom_energies": 0, "forces": 1, "virial": 1}
    for name, order in orders.items():
        assert_close(getattr(actual, name), getattr(expected, name), order, dtype)


def assert_equal(actual: Prediction, expected: Prediction) -> None:
    for name, tensor in actual.tensors.items():
        assert torch.equal(tensor, getattr(expected, name)), name


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize(
    ("backend", "dtype"),
    [
        *((backend, dtype) for backend in SEQUENCES for dtype in ("float64", "float32")),
        ("exact", "float32"),
    ],
)
def test_backends_agree_with_the_exact_module(backend, dtype, name):
    expected = compute(engine_of("exact"), SYSTEMS[name], charge=-1)
    actual = compute(engine_of(backend, dtype), SYSTEMS[name], charge=-1)
    assert_same(actual, expected, dtype)


@pytest.mark.parametrize("name", ["molecule", "triclinic", "slab"])
@pytest.mark.parametrize("cutoff", [2.0, 4.5])
@pytest.mark.parametrize("backend", SEQUENCES)
def test_nuclear_repulsion_reaches_as_far_as_it_should(backend, cutoff, name):
    """Neighbor lists use the longer one of the two cutoffs."""
    model = model_of(**SMALL, zbl=ZBLConfig(cutoff, 14.4))
    exact, engine = (Engine(model, "cpu", "float64", one) for one in ("exact", backend))
    assert engine.cutoff == max(cutoff, model.config.cutoff_upper)
    assert_same(compute(engine, SYSTEMS[name]), compute(exact, SYSTEMS[name]), "float64")


@pytest.mark.parametrize("backend", HOST_BACKENDS)
def test_a_batch_is_as_good_as_its_systems(backend):
    engine = engine_of(backend)
    together = compute_all(engine)
    alone = [compute(engine, a, q) for a, q in zip(SYSTEMS.values(), CHARGES, strict=True)]
    for name, tensor in together.tensors.items():
        order = 0 if "energ" in name else 1
        assert_close(tensor, torch.cat([getattr(p, name) for p in alone]), order)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("backend", SEQUENCES)
def test_backends_agree_on_batches(backend, dtype):
    assert_same(compute_all(engine_of(backend, dtype)), compute_all(engine_of("exact")), dtype)


@pytest.mark.parametrize("backend", HOST_BACKENDS)
def test_charges_matter(backend):
    energies = [compute(engine_of(backend), SYSTEMS["molecule"], q).energy for q in (-1, 0, 1)]
    assert len({float(energy) for energy in energies}) == 3


@pytest.mark.parametrize("backend", HOST_BACKENDS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_predictions_have_one_form(backend, dtype):
    prediction = compute(engine_of(backend, dtype), SYSTEMS["water"])
    shapes = {name: list(tensor.shape) for name, tensor in prediction.tensors.items()}
    expected = {"energy": [1], "forces": [24, 3], "virial": [1, 3, 3], "atom_energies": [24]}
    assert shapes == expected
    assert prediction.energy.dtype == prediction.virial.dtype == torch.float64
    assert not any(t.requires_grad or t.is_cuda for t in prediction.tensors.values())
    assert_close(prediction.energy[0], prediction.atom_energies.sum(), 0)
    assert_close(prediction.virial, prediction.virial.mT, 1)


@pytest.mark.parametrize("form", [np.ndarray.tolist, np.asarray, torch.from_numpy])
@pytest.mark.parametrize("backend", HOST_BACKENDS)
def test_lists_arrays_and_tensors_are_the_same(backend, form):
    atoms = SYSTEMS["slab"]
    arrays = atoms.numbers, atoms.positions, atoms.cell.array, atoms.pbc
    engine = engine_of(backend)
    assert_equal(engine.compute(*(form(a) for a in arrays)), compute(engine, atoms))


@pytest.mark.parametrize("backend", HOST_BACKENDS)
def test_inputs_are_left_alone(backend):
    atoms = SYSTEMS["slab"]
    arrays = [atoms.numbers, atoms.positions, atoms.cell.array, atoms.pbc, np.zeros(12, int)]
    given = [a.copy() for a in arrays]
    engine_of(backend).compute(*given)
    assert all(np.array_equal(a, b) for a, b in zip(given, arrays, strict=True))


@pytest.mark.parametrize("backend", HOST_BACKENDS)
def test_results_are_the_users(backend):
    """Changing a prediction affects neither the engine nor other predictions."""
    engine = engine_of(backend)
    first, second = (compute(engine, SYSTEMS["molecule"]) for _ in range(2))
    for tensor in first.tensors.values():
        tensor.zero_()
    assert second.forces.abs().max() > 0
    assert_equal(compute(engine, SYSTEMS["molecule"]), second)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("backend", HOST_BACKENDS)
def test_results_do_not_depend_on_the_past(backend, dtype):
    """Results agree to the bit, whenever the list was built and whatever was computed before."""
    atoms = SYSTEMS["triclinic"].copy()
    rng = np.random.default_rng(0)
    veteran = Engine(model_of(**SMALL), "cpu", dtype, backend)
    for scale in (0.0, 0.05, 0.4):
        atoms.positions += rng.uniform(-scale, scale, atoms.positions.shape)
        novice = Engine(model_of(**SMALL), "cpu", dtype, backend)
        expected = compute(novice, atoms)
        assert_equal(compute(veteran, atoms), expected)
        assert_equal(compute(veteran, atoms), expected)
    compute(veteran, SYSTEMS["water"])
    assert_equal(compute(veteran, atoms), expected)


@pytest.mark.parametrize("backend", HOST_BACKENDS)
def test_the_skin_does_not_matter(backend):
    atoms = SYSTEMS["cubic"]
    results = []
    for skin in (0.0, 0.3, 2.0):
        engine = Engine(model_of(**SMALL), "cpu", "float64", backend, skin=skin)
        results.append([compute(engine, rattled(atoms, seed)) for seed in range(3)])
    for predictions in zip(*results, strict=True):
        assert_equal(predictions[0], predictions[1])
        assert_equal(predictions[0], predictions[2])


def rattled(atoms: Atoms, seed: int) -> Atoms:
    moved = atoms.copy()
    moved.rattle(0.03, seed=seed)
    return moved


@pytest.mark.parametrize("backend", HOST_BACKENDS)
def test_threads_get_what_they_would_get_alone(backend):
    engine = engine_of(backend, "float32")
    jobs = [partial(compute, engine, atoms) for atoms in SYSTEMS.values()]
    jobs.append(partial(compute_all, engine))
    expected = [job() for job in jobs]
    found: dict[int, list[Prediction]] = {}

    def work(k: int, job: Callable[[], Prediction]) -> None:
        start.wait()
        found[k] = [job() for _ in range(3)]

    start = threading.Barrier(len(jobs))
    threads = [threading.Thread(target=work, args=job) for job in enumerate(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k, prediction in enumerate(expected):
        for other in found[k]:
            assert_equal(other, prediction)


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda engine: pickle.loads(pickle.dumps(engine))]
)
@pytest.mark.parametrize("backend", HOST_BACKENDS)
def test_copies_and_pickles_are_as_good(backend, copied):
    models = [model_of(**SMALL), model_of(**SMALL, activation="tanh")]
    for model in (models[0], Ensemble(models)):
        engine = Engine(model, "cpu", "float32", backend, skin=0.7)
        expected = compute(engine, SYSTEMS["triclinic"])
        other = copied(engine)
        assert other is not engine
        assert (other.backend, other.dtype, other.weights) == (
            backend,
            torch.float32,
            engine.weights,
        )
        assert_equal(compute(other, SYSTEMS["triclinic"]), expected)


def test_a_pickle_needs_no_file_but_that_of_a_shipped_model(tmp_path):
    path = tmp_path / "model.safetensors"
    save_model(model_of(**SMALL), path)
    blob = pickle.dumps(Engine(path, "cpu", "float64"))
    path.unlink()
    assert_equal(
        compute(pickle.loads(blob), SYSTEMS["slab"]),
        compute(Engine(model_of(**SMALL), "cpu", "float64"), SYSTEMS["slab"]),
    )
    assert len(pickle.dumps(Engine("default", "cpu"))) < 1000


FORK = """
import multiprocessing, sys, threading, torch
torch.set_num_threads(2)
from mlff_triton import Engine
from mlff_triton.testing import water_box
backend, allowed = sys.argv[1], float(sys.argv[2])
atoms, engine = water_box(66), Engine("default", device="cpu", backend=backend)
def energy(_=None):
    return float(engine.compute(atoms.numbers, atoms.positions, atoms.cell.array, True).energy)
expected, held, done = energy(), threading.Event(), threading.Event()
def hold():
    with engine.lock:
        held.set()
        done.wait()
threading.Thread(target=hold).start()
held.wait()
with multiprocessing.get_context("fork").Pool(2) as pool:
    found = pool.map_async(energy, range(4))
    try:
        assert all(abs(e - expected) <= allowed for e in found.get(60))
    finally:
        done.set()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="is about processes that fork")
@pytest.mark.parametrize(("backend", "allowed"), [("cpu", 0.0), ("exact", 1e-3)])
def test_forked_processes_do_not_wait_for_threads_of_their_parent(backend, allowed):
    """They compute alone, and the bits of loops do not depend on the number of threads."""
    command = [sys.executable, "-c", FORK, backend, str(allowed)]
    done = subprocess.run(  # noqa: S603 - the code is above
        command, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


SPAWN = """
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
import torch
from mlff_triton import Engine
from mlff_triton.testing import water_box

def forces(engine, n_threads):
    torch.set_num_threads(n_threads)
    atoms = water_box(66)
    found = engine.compute(atoms.numbers, atoms.positions, atoms.cell.array, True)
    return found.forces.numpy().tobytes()

if __name__ == "__main__":
    engine = Engine("default", "cpu", backend="cpu")
    expected = forces(engine, 1)
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        found = [pool.submit(forces, engine, n_threads) for n_threads in (1, 2, 3)]
        assert all(each.result(60) == expected for each in found)
"""


def test_pickled_engines_give_the_same_bits_in_other_processes(tmp_path):
    path = tmp_path / "spawn.py"
    path.write_text(SPAWN)
    done = subprocess.run(  # noqa: S603 - the code is above
        [sys.executable, path], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


def test_engines_in_several_threads_give_the_same_bits():
    """Engines have locks of their own, so that their steps run at the same time."""
    atoms = water_box(66)
    first, *others = (Engine(model_of(**SMALL), "cpu", "float32", "cpu") for _ in range(4))
    expected, before = compute(first, atoms), torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with ThreadPoolExecutor(4) as pool:
            found = [pool.submit(compute, e, atoms) for e in (first, *others) for _ in range(3)]
            results = [each.result() for each in found]
    finally:
        torch.set_num_threads(before)
    for result in results:
        assert_equal(result, expected)


@pytest.mark.parametrize("backend", HOST_BACKENDS)
def test_an_ensemble_is_the_mean_of_its_members(backend):
    models = [model_of(**SMALL), model_of(**SMALL, cutoff_upper=2.5, activation="tanh")]
    ensemble = Engine(Ensemble(models), "cpu", "float64", backend)
    assert ensemble.cutoff == 3.5
    members = [Engine(model, "cpu", "float64", "exact") for model in models]
    for atoms in (SYSTEMS["slab"], SYSTEMS["molecule"]):
        means = [
            torch.stack(tensors).mean(0)
            for tensors in zip(*(compute(m, atoms).tensors.values() for m in members), strict=True)
        ]
        assert_same(compute(ensemble, atoms), Prediction(*means), "float64")


@pytest.mark.parametrize("backend", HOST_BACKENDS)
def test_the_model_is_left_alone(backend):
    model = model_of(**SMALL).train().requires_grad_(True)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    engine = Engine(model, "cpu", "float32", backend)
    expected = compute(engine, SYSTEMS["molecule"])
    assert model.training
    assert model.dtype == torch.float64
    assert all(p.requires_grad for p in model.parameters())
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert_equal(compute(engine, SYSTEMS["molecule"]), expected)


def test_shipped_models_go_by_name():
    engine = Engine("default", "cpu")
    assert compute(engine, SYSTEMS["water"]).forces.abs().max() > 0


@pytest.mark.parametrize(
    ("changes", "backend"),
    [({"num_layers": 0}, "exact"), ({"zbl": ZBLConfig(2.0, 14.4)}, "cpu")],
)
def test_auto_serves_every_model(changes, backend):
    model = model_of(**(SMALL | changes))
    engine = Engine(model, "cpu")
    assert engine.backend == backend
    assert torch.isfinite(compute(engine, SYSTEMS["water"]).forces).all()


@pytest.mark.parametrize("backend", HOST_BACKENDS)
@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"positions": np.full((3, 3), np.nan)}, InputError, "atom 0 is NaN or infinite"),
        ({"positions": np.zeros((2, 3))}, InputError, "2 atoms need 2 whole atomic numbers"),
        ({"positions": np.zeros((3, 2))}, InputError, r"shape \[N, 3\]"),
        ({"positions": np.zeros((3, 3))}, OverlappingAtomsError, "atoms 0 and 1"),
        ({"numbers": [8, 1, 79]}, UnknownElementError, "does not know Au"),
        ({"numbers": [8, 1, -1]}, UnknownElementError, "atomic number"),
        ({"numbers": [8, 1, 500]}, UnknownElementError, "atomic number"),
        ({"batch": [0, 2, 2]}, InputError, "without gaps"),
        ({"charge": 0.5}, InputError, "must be an integer"),
        ({"charge": [1, 1]}, InputError, "a list of 1"),
        ({"charge": 10**300}, InputError, "must be an integer"),
        ({"charge": 10**400}, InputError, "must be an integer"),
        ({"pbc": "TTF"}, InputError, "pbc must be one bool or three"),
        ({"pbc": "false"}, InputError, "pbc must be one bool or three"),
        ({"pbc": True}, InputError, "no independent cell vector"),
        ({"cell": np.eye(3) * 1e-3, "pbc": True}, InputError, "check its units"),
    ],
)
def test_wrong_systems_are_refused_and_forgotten(backend, change, error, message):
    engine = engine_of(backend)
    expected = engine.compute(*WATER)
    given = dict(zip(("numbers", "positions"), WATER, strict=True)) | change
    with pytest.raises(error, match=message):
        engine.compute(**given)
    assert_equal(engine.compute(*WATER), expected)


@pytest.mark.parametrize("backend", HOST_BACKENDS)
def test_neutral_models_refuse_charged_systems(backend):
    engine = Engine(model_of(**SMALL, uses_charge=False), "cpu", "float32", backend)
    with pytest.raises(InputError, match="neutral systems: take one that knows charges"):
        engine.compute(*WATER, charge=1)
    engine.compute(*WATER, charge=0)


@pytest.mark.parametrize(
    ("option", "error", "message"),
    [
        ({"dtype": "float16"}, InputError, "'float16' is unknown: use one of float32, float64"),
        ({"dtype": torch.float16}, InputError, "'float16' is unknown: use one of float32"),
        ({"precision": "fast"}, InputError, "precision='fast': use one of exact, tf32"),
        ({"backend": "jax"}, BackendError, "'jax' is unknown: use 'auto' or one of"),
        ({"device": "abacus"}, InputError, "'abacus' is unknown: use 'auto', 'cpu' or 'cuda'"),
        ({"backend": "triton"}, BackendError, "need a GPU, and the device is cpu; use backend="),
        ({"backend": "triton-graph"}, BackendError, "need a GPU, and the device is cpu"),
        ({"model": "no such model"}, CheckpointError, "no model 'no such model'"),
        ({"skin": -0.1}, InputError, "skin must be finite and not negative"),
        ({"skin": float("nan")}, InputError, "skin must be finite and not negative"),
        ({"skin": None}, InputError, "skin must be finite and not negative"),
    ],
)
def test_wrong_options_are_refused(monkeypatch, option, error, message):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)  # set by tests of kernels
    options = {"model": model_of(**SMALL), "device": "cpu"} | option
    with pytest.raises(error, match=message):
        Engine(**options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtypes_may_be_those_of_pytorch(dtype):
    assert Engine(model_of(**SMALL), "cpu", dtype).dtype == dtype


def test_models_beyond_the_engine_are_refused():
    with pytest.raises(BackendError, match=r"interaction layer.*; use backend='exact'"):
        Engine(model_of(**(SMALL | {"num_layers": 0})), "cpu", backend="torch")


def test_a_gpu_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(engine_module.torch.cuda, "is_available", lambda: False)
    with pytest.raises(BackendError, match="no usable GPU for cuda: use device='cpu'"):
        Engine(model_of(**SMALL), "cuda")
    assert find_device("auto").type == "cpu"


@pytest.mark.parametrize("device", ["meta", "mps", None])
def test_devices_that_are_neither_cpu_nor_gpu_are_refused(device):
    with pytest.raises((InputError, BackendError), match="device"):
        Engine(model_of(**SMALL), device)


@pytest.mark.parametrize("backend", HOST_BACKENDS)
def test_only_gpus_prepare_steps(backend):
    with pytest.raises(BackendError, match="on a GPU can be prepared: use compute"):
        engine_of(backend).prepare(*WATER)
