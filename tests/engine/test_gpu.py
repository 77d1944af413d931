"""The engine and the exact module on a GPU, compared with the exact module on the CPU."""

from __future__ import annotations

import gc
import threading
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from ase import Atoms, units
from ase.md.verlet import VelocityVerlet

from mlff_triton import TensorNetCalculator
from mlff_triton.dynamics.preparation import draw_momenta
from mlff_triton.engine import step_graph
from mlff_triton.engine.engine import Engine
from mlff_triton.errors import BackendError
from mlff_triton.kernels.tensornet import operators as fused
from mlff_triton.model.prediction import Prediction
from mlff_triton.testing import (
    assert_close,
    assert_within,
    check_calculator,
    random_cluster,
    random_crystal,
    tolerance,
    water_box,
)
from mlff_triton.units import ENERGY_UNITS
from tests.support.tensornets import ZBL, model_of, uncertain

pytestmark = [
    pytest.mark.gpu,
    # of random structures
    pytest.mark.filterwarnings("ignore::mlff_triton.model.known_domain.UnknownChemistryWarning"),
]

# On a GPU, the exact module sums over neighbors by atomics, so results agree up to rounding.
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


@pytest.mark.parametrize(
    ("atoms", "count"),
    [
        (random_cluster(21), 2),
        (random_cluster(21), 256),  # one has few atoms, all have many
        (water_box(64), 3),
        (water_box(343), 3),
        (random_crystal(2, "small"), 40),
    ],
    ids=str,
)
@pytest.mark.parametrize("channels", [32, 64, 128])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("knows", [False, True], ids=["plain", "uncertain"])
def test_a_system_has_the_same_bits_alone_and_in_a_batch(
    atoms, count, channels, dtype, knows
) -> None:
    model = model_of(hidden_channels=channels)
    if knows:
        uncertain(model, channels // 2, None)
    calculator = TensorNetCalculator(model, device="cuda", dtype=dtype, backend="triton")
    others = [atoms.copy() for _ in range(count - 1)]
    for seed, other in enumerate(others):
        other.rattle(0.02, seed=seed)
    (alone,) = calculator.calculate_many([atoms])
    *_, last = calculator.calculate_many([*others, atoms])
    assert last["energy"] == alone["energy"]
    np.testing.assert_array_equal(last["forces"], alone["forces"])
    if knows:
        np.testing.assert_array_equal(last["uncertainty"], alone["uncertainty"])


def test_graphs_follow_graphs_that_are_all_gone() -> None:
    atoms = SYSTEMS["cluster"]
    engine = Engine("default", "cuda", backend="triton-graph")
    positions = torch.from_numpy(atoms.positions).cuda()
    energies = [engine.resident(atoms.numbers).step(positions)[0] for _ in range(3)]
    assert energies[0] == energies[1] == energies[2]


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
        # Near equilibrium, the stress is a small difference of large virials, which set the scale.
        atoms = SYSTEMS[name]
        virial = len(atoms) * np.abs(expected["forces"]).max() / atoms.get_volume()  # times 1 Å
        allowed = tolerance(1, dtype)
        assert_within(actual["stress"], expected["stress"], allowed, floor=virial)


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("backend", ["triton-graph", "triton", "torch", "exact"])
def test_uncertainties_agree_with_float64_on_the_cpu(name: str, dtype: str, backend: str) -> None:
    model = uncertain(model_of(hidden_channels=128, cutoff_upper=5.0), 64, None)
    truth = TensorNetCalculator(model, device="cpu", dtype="float64", backend="exact")
    ours = TensorNetCalculator(model, device="cuda", dtype=dtype, backend=backend)
    (expected,) = truth.calculate_many([SYSTEMS[name]])
    for _ in range(2):
        (actual,) = ours.calculate_many([SYSTEMS[name]])
        assert_close(actual["uncertainty"], expected["uncertainty"], 1, dtype)


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


GRAPH = "triton-graph"
KCAL_PER_MOL = ENERGY_UNITS["kcal/mol"]  # eV


def rattled(atoms: Atoms, seed: int, size: float = 0.02) -> Atoms:
    copy = atoms.copy()
    copy.rattle(size, seed=seed)
    return copy


# Identical molecules would have identical rounding errors, which would add up in the virial.
LARGE = {
    21: random_cluster(21),
    1029: rattled(water_box(343), seed=0),
    3000: rattled(water_box(1000), seed=1),
}


@cache
def engine_of(
    device: str, dtype: str, backend: str, large: bool = False, name: str = "first"
) -> Engine:
    """Return an engine of the shipped model, or of a random one of 128 channels, per name."""
    del name
    model = model_of(hidden_channels=128, num_rbf=32, cutoff_upper=5.0) if large else "default"
    return Engine(model, device, dtype, backend)


def compute(engine: Engine, atoms: Atoms) -> Prediction:
    arrays = engine.compute(atoms.numbers, atoms.positions, atoms.cell.array, atoms.pbc)
    return arrays.map(lambda tensor: tensor.cpu().double())


def assert_equal(actual: Prediction, expected: Prediction) -> None:
    for name, tensor in actual.tensors.items():
        assert torch.equal(tensor, getattr(expected, name)), name


def test_the_engine_takes_the_graph() -> None:
    assert Engine().backend == GRAPH


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_engine_agrees_with_float64_on_the_cpu(name: str, dtype: str) -> None:
    atoms = SYSTEMS[name]
    expected = compute(engine_of("cpu", "float64", "exact"), atoms)
    actual = compute(engine_of("cuda", dtype, GRAPH), atoms)
    largest = float(expected.forces.abs().max())
    assert_close(actual.energy, expected.energy, 0, dtype)
    assert_close(actual.atom_energies, expected.atom_energies, 0, dtype)
    assert_close(actual.forces, expected.forces, 1, dtype, floor=1e-3)
    # Near equilibrium, the virial is a small difference of large ones, which set the scale.
    assert_close(actual.virial, expected.virial, 1, dtype, floor=len(atoms) * max(largest, 1e-3))


@pytest.mark.parametrize("cutoff", [2.5, 4.5])
@pytest.mark.parametrize("name", ["cluster", "triclinic"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_nuclear_repulsion(dtype: str, name: str, cutoff: float) -> None:
    """Its cutoff is shorter or longer than that of the network."""
    model = model_of(hidden_channels=64, zbl=replace(ZBL, cutoff=cutoff))
    expected = compute(Engine(model, "cpu", "float64", "exact"), SYSTEMS[name])
    engine = Engine(model, "cuda", dtype, GRAPH)
    actual, again = (compute(engine, SYSTEMS[name]) for _ in range(2))
    assert_equal(actual, again)
    for quantity, order in (("energy", 0), ("atom_energies", 0), ("forces", 1), ("virial", 1)):
        assert_close(getattr(actual, quantity), getattr(expected, quantity), order, dtype)


@pytest.mark.parametrize("n_atoms", LARGE)
def test_float32_is_as_exact_as_the_modules(n_atoms: int) -> None:
    atoms = LARGE[n_atoms]
    truth = compute(engine_of("cuda", "float64", "exact", large=True), atoms)
    own = compute(engine_of("cuda", "float32", "exact", large=True), atoms)
    actual = compute(engine_of("cuda", "float32", GRAPH, large=True), atoms)
    for name in ("energy", "forces", "virial"):
        exact, *computed = (getattr(p, name) for p in (truth, actual, own))
        error, own_error = (float((x - exact).norm() / exact.norm()) for x in computed)
        assert error <= (own_error if name == "forces" else max(2 * own_error, 1e-6)), name


@pytest.mark.parametrize("n_atoms", LARGE)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_two_engines_agree_to_the_bit(n_atoms: int, dtype: str) -> None:
    """One of them built its neighbor matrix for other positions."""
    veteran, novice = (engine_of("cuda", dtype, GRAPH, True, name) for name in ("first", "second"))
    compute(veteran, LARGE[n_atoms])
    atoms = rattled(LARGE[n_atoms], seed=1)
    first, again, other = (compute(engine, atoms) for engine in (veteran, veteran, novice))
    assert_equal(first, again)
    assert_equal(first, other)


def test_memory_does_not_grow() -> None:
    engine = Engine("default", "cuda")
    sizes = list(range(3, 93, 3))
    clusters = [random_cluster(n) for n in sizes]

    def memory_after(structures: list[Atoms]) -> int:
        for atoms in structures:
            engine.compute(atoms.numbers, atoms.positions)
        gc.collect()
        return torch.cuda.memory_reserved()

    before = memory_after(clusters)
    assert memory_after(clusters) <= 1.2 * before
    steps = [rattled(clusters[-1], seed, size=0.05) for seed in range(200)]
    before = memory_after(steps[:20])
    assert memory_after(steps[20:]) <= before


def test_graphs_replay_in_any_thread() -> None:
    engine = Engine("default", "cuda")
    captured, atoms = SYSTEMS["water"], rattled(SYSTEMS["water"], seed=1)
    here = [compute(engine, a) for a in (captured, atoms)]
    there: list[Prediction] = []
    thread = threading.Thread(
        target=lambda: there.extend(compute(engine, a) for a in (captured, atoms))
    )
    thread.start()
    thread.join()
    for found, expected in zip(there, here, strict=True):
        assert_equal(found, expected)


def test_threads_capture_side_by_side() -> None:
    jobs = [(Engine("default", "cuda"), random_cluster(20 + n)) for n in range(4)]
    found: dict[int, Prediction] = {}

    def work(k: int) -> None:
        start.wait()
        found[k] = compute(*jobs[k])

    start = threading.Barrier(len(jobs))
    threads = [threading.Thread(target=work, args=[k]) for k in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k, (_, atoms) in enumerate(jobs):
        assert_equal(found[k], compute(engine_of("cuda", "float32", GRAPH), atoms))


@pytest.mark.parametrize(("model", "limit"), [("tensornet-gfn2", 1e-6), ("tensornet-wb97m", 3e-6)])
def test_a_trajectory_stays_true(model: str, limit: float) -> None:
    """Results are right at every hundredth of 1,000 steps of 0.5 fs.

    The default model has larger weights, and its energies larger errors in float32: 1e-6
    kcal/mol per atom on a CPU, too, where the exact module has 8e-7.
    """
    atoms = water_box(64)
    draw_momenta(atoms, 300.0, np.random.default_rng(0))
    atoms.calc = TensorNetCalculator(model, device="cuda")
    dynamics = VelocityVerlet(atoms, 0.5 * units.fs)
    truth = Engine(model, "cuda", "float64", "exact")
    for _ in range(10):
        dynamics.run(100)
        expected = compute(truth, atoms)
        error = abs(atoms.get_potential_energy() - float(expected.energy)) / len(atoms)
        assert error <= limit * KCAL_PER_MOL
        assert_within(atoms.get_forces(), expected.forces, 1e-5)


def test_too_little_memory_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine("default", "cuda")
    atoms = SYSTEMS["water"]
    with monkeypatch.context() as patch:
        patch.setattr(fused, "readout", _run_out_of_memory)
        with pytest.raises(BackendError, match=r"192 atoms need about .* GiB of GPU memory"):
            compute(engine, atoms)
    assert_equal(compute(engine, atoms), compute(engine_of("cuda", "float32", GRAPH), atoms))


def test_steps_without_memory_for_a_graph_have_the_same_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = compute(engine_of("cuda", "float32", GRAPH), SYSTEMS["water"])
    monkeypatch.setattr(step_graph, "record", _run_out_of_memory)
    assert_equal(compute(Engine("default", "cuda"), SYSTEMS["water"]), expected)


def _run_out_of_memory(*_: object) -> None:
    raise torch.OutOfMemoryError
