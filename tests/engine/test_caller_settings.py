"""Every face gives the same bits whatever its caller has set in PyTorch."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache, partial

import numpy as np
import pytest
import torch
from ase.build import molecule
from torch import Tensor

from mlff_triton import (
    Engine,
    TensorNet,
    TensorNet2Config,
    TensorNetCalculator,
    load_model,
    neighbor_list,
    predict,
    save_model,
)
from mlff_triton._common.torch_settings import own_settings
from mlff_triton.dynamics import Settings, Simulation, Stage
from mlff_triton.errors import InputError
from mlff_triton.model.tensornet2 import TensorNet2
from mlff_triton.testing import CALLER_SETTINGS, random_cluster, random_crystal
from mlff_triton.testing.settings import random_states
from tests.support.tensornets import model_of

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")

SMALL = {"num_layers": 1, "hidden_channels": 32, "num_rbf": 6}
settings = pytest.mark.parametrize("setting", CALLER_SETTINGS.values(), ids=[*CALLER_SETTINGS])
engines = pytest.mark.parametrize(
    ("device", "backend"),
    [
        ("cpu", "exact"),
        ("cpu", "cpu"),
        ("cpu", "torch"),
        pytest.param("cuda", "torch", marks=pytest.mark.gpu),
        pytest.param("cuda", "triton", marks=pytest.mark.gpu),
        pytest.param("cuda", "triton-graph", marks=pytest.mark.gpu),
    ],
)

Results = list[np.ndarray]


@cache
def small_model() -> TensorNet:
    return model_of(**SMALL)


@cache
def charged_model() -> TensorNet:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        return TensorNet2(TensorNet2Config((1, 6, 7, 8), hidden_channels=8, num_layers=1))


def engine_of(device: str, backend: str) -> Engine:
    return Engine(small_model(), device, backend=backend)


def arrays(*tensors: Tensor | np.ndarray) -> Results:
    return [t.detach().cpu().numpy() if isinstance(t, Tensor) else np.asarray(t) for t in tensors]


def computed(engine: Engine) -> Results:
    atoms = random_crystal(9, "slab")
    found = engine.compute(atoms.numbers, atoms.positions, atoms.cell.array, atoms.pbc)
    return arrays(found.energy, found.forces, found.virial)


def queued(engine: Engine) -> Results:
    atoms = random_crystal(9, "triclinic")
    with own_settings():
        numbers, positions = (
            torch.tensor(a, device=engine.device) for a in (atoms.numbers, atoms.positions)
        )
        cell = torch.tensor(atoms.cell.array[None], device=engine.device)
        batch = torch.zeros_like(numbers)
    found = engine.queue(numbers, positions, cell, True, batch)
    return arrays(found.energy, found.forces, found.virial)


def resident(engine: Engine) -> Results:
    atoms = random_cluster(9)
    system = engine.resident(atoms.numbers)
    with own_settings():
        positions = torch.tensor(atoms.positions, device=engine.device)
    return arrays(*system.step(positions))


def part(engine: Engine) -> Results:
    atoms = random_cluster(9)
    system = engine.part()
    system.set_atoms(atoms.numbers, 5, 9)
    found = system.step(atoms.positions, per_atom=True)
    return arrays(found.forces, found.virial, found.atom_energies, found.atom_virials)


@engines
@pytest.mark.parametrize("face", [computed, queued, resident, part])
@settings
def test_engines_give_the_same_bits(device, backend, face, setting):
    """Also an engine that was made under the setting and is used without it."""
    engine = engine_of(device, backend)
    expected = face(engine)
    with setting():
        inside, made_inside = face(engine_of(device, backend)), engine_of(device, backend)
        used_before = face(engine)
    for found in (inside, used_before, face(made_inside)):
        assert all(map(np.array_equal, found, expected))


@settings
def test_charges_give_the_same_bits(setting):
    engine = Engine(charged_model(), "cpu")
    expected = computed_charges(engine)
    with setting():
        inside = computed_charges(engine)
    assert all(map(np.array_equal, inside, expected))


def computed_charges(engine: Engine) -> Results:
    atoms = random_cluster(7)
    found = engine.compute(atoms.numbers, atoms.positions, charge=1)
    return arrays(found.energy, found.forces, found.charges)


@settings
def test_batches_of_the_calculator_give_the_same_bits(setting):
    calculator = TensorNetCalculator(small_model(), device="cpu")
    images = [random_cluster(5), random_crystal(6, "slab"), random_cluster(5, seed=1)]

    def results() -> Results:
        return [entry[name] for entry in calculator.calculate_many(images) for name in entry]

    expected = results()
    with setting():
        found = results()
    assert all(map(np.array_equal, found, expected))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@settings
def test_simulations_give_the_same_bits(tmp_path, device, setting):
    def run(name: str) -> bytes:
        calculator = TensorNetCalculator(small_model(), device=device)
        stages = (Stage("nvt", 4),)
        chosen = Settings(stages=stages, every=2, timestep=0.1, minimize=True)
        simulation = Simulation.start(random_cluster(6), calculator, chosen, tmp_path / name)
        simulation.run()
        return (tmp_path / name / "trajectory.xyz").read_bytes()

    expected = run("outside")
    with setting():
        found = run("inside")
    assert found == expected


@settings
def test_models_load_and_save_the_same_bits(tmp_path, setting):
    save_model(small_model(), tmp_path / "outside.safetensors")
    with setting():
        save_model(small_model(), tmp_path / "inside.safetensors")
        loaded = load_model(tmp_path / "inside.safetensors")
        predicted = predictions(loaded)
    expected = predictions(load_model(tmp_path / "outside.safetensors"))
    for found in (predicted, predictions(loaded)):
        assert all(map(np.array_equal, found, expected))


def predictions(model: TensorNet) -> Results:
    """Predict with tensors that are made under the settings of the caller, but on the CPU."""
    atoms = random_crystal(9, "triclinic")
    on_cpu = partial(torch.tensor, device="cpu")
    positions, cell = on_cpu(atoms.positions), on_cpu(atoms.cell.array[None])
    graph = neighbor_list(positions, model.cutoff, cell[0], True)
    found = predict(model, on_cpu(atoms.numbers), positions, graph, cell=cell)
    return arrays(found.energy, found.forces, found.virial, found.atom_energies)


@pytest.mark.parametrize("load", [load_model, partial(TensorNetCalculator, device="cpu"), Engine])
def test_loading_draws_no_random_numbers(load: Callable[[str], object]):
    before = random_states()
    load("default")
    assert all(map(torch.equal, random_states(), before))


@pytest.mark.gpu
def test_steps_on_a_gpu_draw_no_random_numbers():
    before = random_states()
    computed(Engine("default", "cuda"))
    assert all(map(torch.equal, random_states(), before))


@settings
def test_settings_of_the_caller_come_back(setting):
    def seen() -> list[object]:
        return [
            torch.is_autocast_enabled("cpu"),
            torch.is_inference_mode_enabled(),
            torch.is_grad_enabled(),
            torch.get_default_dtype(),
            torch.get_default_device(),
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.is_anomaly_enabled(),
            torch.get_float32_matmul_precision(),
        ]

    with setting():
        before = seen()
        with pytest.raises(ZeroDivisionError), own_settings():
            raise ZeroDivisionError
        assert seen() == before


@pytest.mark.skipif(not hasattr(torch.backends.mkldnn, "matmul"), reason="new in PyTorch 2.9")
def test_products_follow_the_precision_that_their_caller_chooses_later():
    """A precision of all backends, which that of products follows, is not made their own."""
    matmul = torch.backends.cuda.matmul
    matmul.fp32_precision = "none"
    torch.backends.fp32_precision = "tf32"
    try:
        with own_settings():
            assert matmul.fp32_precision == "ieee"
        assert matmul.fp32_precision == "tf32"
    finally:
        torch.backends.fp32_precision = "none"
    assert matmul.fp32_precision == "none"


@pytest.mark.parametrize("transform", [torch.func.vmap, torch.func.grad, torch.func.functionalize])
@pytest.mark.parametrize("made", ["before", "inside"])
def test_transforms_of_functions_are_refused(transform, made):
    """Their derivatives would be zero, or PyTorch's own error would be about something else."""
    calculator, atoms = TensorNetCalculator("default", device="cpu"), molecule("H2O")

    def energy(x: Tensor) -> Tensor:
        atoms.calc = (
            TensorNetCalculator("default", device="cpu") if made == "inside" else calculator
        )
        return x.sum() * atoms.get_potential_energy()

    with pytest.raises(InputError, match="load the model outside, and call predict"):
        transform(energy)(torch.ones(3))
    with pytest.raises(InputError, match="load the model outside, and call predict"):
        transform(lambda x: calculator.session.engine.compute([8, 1, 1], x).energy.sum())(
            torch.from_numpy(atoms.positions)
        )


def test_predictions_with_a_graph_can_be_transformed():
    atoms, model = molecule("H2O"), small_model()
    numbers, positions = torch.from_numpy(atoms.numbers), torch.from_numpy(atoms.positions)
    graph = neighbor_list(positions, model.cutoff)

    def energy(x: Tensor) -> Tensor:
        return predict(model, numbers, x, graph, create_graph=True).energy.sum()

    forces = predict(model, numbers, positions, graph).forces
    torch.testing.assert_close(torch.func.grad(energy)(positions), -forces)


def test_other_threads_keep_their_autocast():
    """Settings that belong to a thread change in that thread alone."""
    seen: list[bool] = []

    def look() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            seen.append(torch.is_autocast_enabled("cpu"))

    with torch.autocast("cpu"), own_settings():
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        assert seen == [True]
        assert not torch.is_autocast_enabled("cpu")
