"""The ASE calculator: conformance, workflows of ASE, errors, and conservation of energy."""

from __future__ import annotations

import copy
import pickle
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from importlib import resources

import ase.db
import ase.io
import numpy as np
import pytest
import torch
from ase import Atoms, units
from ase.build import molecule
from ase.calculators.calculator import PropertyNotImplementedError
from ase.md.verlet import VelocityVerlet
from ase.mep import NEB
from ase.optimize import BFGS, FIRE
from ase.vibrations import Vibrations

from mlff_triton import (
    Ensemble,
    TensorNet,
    TensorNetCalculator,
    TensorNetConfig,
    load_model,
    save_model,
)
from mlff_triton._common.garbage import garbage_kept
from mlff_triton.dynamics.preparation import draw_momenta, minimize
from mlff_triton.errors import (
    BackendError,
    CheckpointError,
    InputError,
    OverlappingAtomsError,
    UnknownElementError,
)
from mlff_triton.testing import (
    assert_close,
    assert_within,
    check_calculator,
    random_cluster,
    random_crystal,
    water_box,
)

CUTOFF = 4.0
DTYPES = ["float64", "float32"]


def random_model(seed: int = 0, **changes) -> TensorNet:
    torch.manual_seed(seed)
    options = {"hidden_channels": 8, "num_layers": 1, "num_rbf": 8, "cutoff_upper": CUTOFF}
    model = TensorNet(TensorNetConfig((1, 6, 7, 8), **{**options, **changes}))
    for name, parameter in model.named_parameters():
        if not name.startswith("basis"):
            parameter.data += 0.1 * torch.randn_like(parameter)
    model.std = torch.tensor(5.0, dtype=torch.float64)
    model.references = torch.tensor([-1.0, -2.0, -3.0, -4.0], dtype=torch.float64)
    return model


MODELS = {
    "O(3)": random_model(),
    "SO(3)": random_model(group="SO(3)", num_layers=2),
    "as MatGL": random_model(
        rbf_type="bessel-smooth",
        self_loops=False,
        readout_activation=False,
        head="gated",
        uses_charge=False,
    ),
    "ensemble": Ensemble([random_model(1), random_model(2, num_layers=0)]),
}


def calculator(model="default", dtype="float64", **options) -> TensorNetCalculator:
    return TensorNetCalculator(model, device="cpu", dtype=dtype, **options)


def rattled(name: str) -> Atoms:
    atoms = molecule(name)
    atoms.rattle(0.05, seed=0)
    return atoms


STRUCTURES = {
    "vacuum": random_cluster(4, seed=1),
    "triclinic": random_crystal(4, "triclinic", seed=2),
    "small": random_crystal(2, "small", seed=3),
    "slab": random_crystal(4, "slab", seed=4),
    "rod": random_crystal(3, "rod", seed=5),
}


CONFORMING = [
    *(("O(3)", structure, "float64") for structure in STRUCTURES),
    *(("O(3)", structure, "float32") for structure in ("vacuum", "triclinic")),
    ("SO(3)", "slab", "float64"),
    ("as MatGL", "vacuum", "float64"),
    ("as MatGL", "small", "float64"),
    *(("ensemble", "triclinic", dtype) for dtype in DTYPES),
    # Steps of these models are tested in float32, and the calculator with others.
    pytest.param("SO(3)", "slab", "float32", marks=pytest.mark.slow),
    pytest.param("as MatGL", "vacuum", "float32", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_copies_do_not_see_what_others_compute(copied):
    first, other = random_cluster(5, seed=1), random_cluster(5, seed=1)
    other.positions += np.random.default_rng(1).uniform(-0.1, 0.1, (5, 3))
    model = random_model()
    options = {"device": "cpu", "dtype": "float64"}
    expected = [
        TensorNetCalculator(model, **options).get_potential_energy(atoms)
        for atoms in (first, other)
    ]
    calculators = [TensorNetCalculator(model, **options)]
    calculators.append(copied(calculators[0]))
    for k in (0, 1, 1, 0, 0):
        for calculator, atoms in zip(calculators, (first, other), strict=True):
            calculator.get_potential_energy(atoms)
        found = calculators[k].get_potential_energy((other, first)[k])
        assert found == expected[1 - k] != expected[k]


@pytest.mark.parametrize("name", ["dispersion", "coulomb", "dtype", "device", "model", "nonsense"])
def test_options_do_not_change_in_silence(name):
    calculator = TensorNetCalculator(random_model(), device="cpu")
    before = dict(calculator.parameters)
    with pytest.raises(InputError, match=f"make a new TensorNetCalculator with {name}=") as refusal:
        calculator.set(**{name: "pme"})
    assert "\n" not in str(refusal.value)
    assert calculator.parameters == before
    assert calculator.set(dtype="float32") == {}


@pytest.mark.parametrize(("model", "structure", "dtype"), CONFORMING)
def test_random_models_conform(model, structure, dtype, request):
    if (model, structure) != ("O(3)", "vacuum"):
        request.getfixturevalue("shared_tables")
    outcomes = check_calculator(
        lambda: calculator(MODELS[model], dtype),
        STRUCTURES[structure],
        dtype=dtype,
        cutoff=CUTOFF,
    )
    periodic = {"stress_matches_energy", "images_are_the_same"}
    skipped = {name for name, outcome in outcomes.items() if outcome != "passed"}
    assert skipped == (periodic if structure == "vacuum" else set())


@pytest.mark.usefixtures("shared_tables")
@pytest.mark.filterwarnings("ignore::mlff_triton.model.known_domain.UnknownChemistryWarning")
@pytest.mark.parametrize(
    ("system", "dtype"),
    [
        ("methanol", "float32"),
        ("small cell", "float32"),
        # Random models conform in float64 in a small cell.
        pytest.param("small cell", "float64", marks=pytest.mark.slow),
    ],
)
def test_default_model_conforms(system, dtype):
    model = load_model("default")
    atoms = rattled("CH3OH") if system == "methanol" else water_box(1)
    check_calculator(lambda: calculator(model, dtype), atoms, dtype=dtype, cutoff=model.cutoff)


def test_calculators_are_freed_without_garbage_collection():
    calc = calculator(MODELS["O(3)"])
    atoms = STRUCTURES["vacuum"].copy()
    atoms.calc = calc
    atoms.get_forces()
    with garbage_kept:
        gone = weakref.ref(calc)
        del atoms, calc
        assert gone() is None


def test_spin_is_answered_as_by_ase():
    with pytest.warns(FutureWarning, match="does not implement get_spin_polarized"):
        assert calculator(MODELS["O(3)"]).get_spin_polarized() is False


def test_charged_atoms_conform():
    atoms = random_cluster(5)
    atoms.info["charge"] = -1
    check_calculator(lambda: calculator(MODELS["O(3)"]), atoms, cutoff=CUTOFF)


# Charge


def test_charge_is_read_from_info_and_its_change_noticed():
    atoms = random_cluster(6)
    atoms.calc = calculator(MODELS["O(3)"])
    energies = [atoms.get_potential_energy()]
    for charge in (1, -2, 0):
        atoms.info["charge"] = charge
        energies.append(atoms.get_potential_energy())
    assert energies[3] == energies[0]
    assert len({round(energy, 6) for energy in energies}) == 3
    del atoms.info["charge"]
    assert atoms.get_potential_energy() == energies[0]


@pytest.mark.parametrize("charge", [0.5, "two", None, np.nan, [1, 2]])
def test_charges_that_are_no_integers_are_refused(charge):
    atoms = random_cluster(4)
    atoms.info["charge"] = charge
    with pytest.raises(InputError, match="must be an integer"):
        calculator(MODELS["O(3)"]).get_potential_energy(atoms)


def test_charge_is_refused_by_models_of_neutral_systems():
    atoms = random_cluster(4)
    atoms.info["charge"] = 1
    atoms.calc = calculator(MODELS["as MatGL"])
    with pytest.raises(InputError, match="neutral"):
        atoms.get_forces()
    atoms.info["charge"] = 0
    assert np.isfinite(atoms.get_forces()).all()


# Workflows


def test_bfgs_relaxes():
    atoms = rattled("CH3CH2OH")
    atoms.calc = calculator(dtype="float32")
    before = atoms.get_potential_energy()
    assert BFGS(atoms, logfile=None).run(fmax=0.01, steps=200)
    assert np.linalg.norm(atoms.get_forces(), axis=1).max() < 0.01
    assert atoms.get_potential_energy() < before - 0.1


def test_neb_finds_a_barrier():
    """Ammonia inverts, and by symmetry the planar molecule is the barrier."""
    first = molecule("NH3")
    first.calc = calculator()
    BFGS(first, logfile=None).run(fmax=0.005, steps=100)
    last = first.copy()
    last.positions[:, 2] = 2 * first.positions[1:, 2].mean() - first.positions[:, 2]
    last.positions[1:] = first.positions[1:]
    images = [first, *(first.copy() for _ in range(3)), last]
    for image in images[1:]:
        image.calc = calculator()
    band = NEB(images, climb=True, method="improvedtangent")
    band.interpolate()
    assert FIRE(band, logfile=None).run(fmax=0.05, steps=200)
    energies = [image.get_potential_energy() for image in images]
    assert energies[0] == pytest.approx(energies[-1], abs=1e-8)
    assert max(energies) == energies[2] > energies[0] + 0.05
    assert np.ptp(images[2].positions[:, 2]) < 0.05


def test_vibrations_of_water_are_real(tmp_path):
    atoms = molecule("H2O")
    atoms.calc = calculator()
    BFGS(atoms, logfile=None).run(fmax=1e-4, steps=200)
    vibrations = Vibrations(atoms, name=str(tmp_path / "water"))
    vibrations.run()
    frequencies = vibrations.get_frequencies()
    bend, *stretches = np.sort(frequencies.real)[-3:]
    assert not frequencies[-3:].imag.any()
    assert 1200 < bend < 2000
    assert all(3000 < stretch < 4500 for stretch in stretches)
    assert np.abs(frequencies[:6]).max() < 100


def test_velocity_verlet_reuses_the_list():
    atoms = water_box(8)
    atoms.calc = calculator(dtype="float32")
    draw_momenta(atoms, 300, np.random.default_rng(0))
    VelocityVerlet(atoms, 0.5 * units.fs).run(60)
    assert 1 <= atoms.calc.session.engine.n_builds <= 10
    fresh = calculator(dtype="float32", skin=0.0)
    assert_close(atoms.get_forces(), fresh.get_forces(atoms), 1, "float32")


# Many systems


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("model", MODELS)
def test_many_at_once_are_as_one_by_one(model, dtype):
    images = [atoms.copy() for atoms in STRUCTURES.values()]
    images += [Atoms("O"), random_cluster(11)]
    if model != "as MatGL":
        images[0].info["charge"], images[2].info["charge"] = -1, 2
    many = calculator(MODELS[model], dtype).calculate_many(images)
    assert len(many) == len(images)
    for atoms, results in zip(images, many, strict=True):
        alone = calculator(MODELS[model], dtype)
        alone.calculate(atoms)
        assert results.keys() == alone.results.keys()
        for name, expected in alone.results.items():
            order = 1 if name in ("forces", "stress") else 0
            assert_close(results[name], expected, order, dtype, floor=5.0 * len(atoms))


def test_many_are_split_into_batches(monkeypatch):
    images = [random_cluster(n, seed=n) for n in (3, 4, 1, 9, 2, 5, 7)]
    calc, sizes = calculator(MODELS["O(3)"]), []
    evaluate = calc.session.evaluate_many

    def counted(systems):
        sizes.append([len(system.numbers) for system in systems])
        return evaluate(systems)

    monkeypatch.setattr(calc.session, "evaluate_many", counted)
    results = calc.calculate_many(images, max_batch_atoms=7)
    assert sizes == [[3, 4], [1], [9], [2, 5], [7]]
    for atoms, result in zip(images, results, strict=True):
        assert_close(result["energy"], calc.get_potential_energy(atoms), 0)
    assert calc.calculate_many([]) == []


def test_many_leave_the_calculators_own_results_alone():
    atoms = random_cluster(5)
    atoms.calc = calculator(MODELS["O(3)"])
    forces = atoms.get_forces()
    kept = atoms.calc.results
    atoms.calc.calculate_many([random_cluster(7), random_crystal(3)])
    assert atoms.calc.results is kept
    assert np.array_equal(atoms.get_forces(), forces)


# Changes


def test_one_calculator_serves_changing_structures():
    calc = calculator(MODELS["O(3)"])
    grown = random_cluster(6) + Atoms("O", [[9.0, 0.0, 0.0]])
    swapped = random_cluster(6)
    swapped.numbers[[0, 1]] = swapped.numbers[[1, 0]]
    moved = random_cluster(6)
    moved.positions[[0, 1]] = moved.positions[[1, 0]]
    sequence = [random_cluster(6), grown, swapped, moved, random_crystal(6), random_cluster(6)]
    for atoms in sequence + sequence[::-1]:
        expected = calculator(MODELS["O(3)"]).get_forces(atoms)
        assert np.array_equal(calc.get_forces(atoms), expected)


def test_swapping_two_atoms_swaps_their_forces():
    atoms = random_cluster(6)
    atoms.calc = calculator(MODELS["O(3)"])
    forces = atoms.get_forces()
    order = [1, 0, 2, 3, 4, 5]
    atoms.positions, atoms.numbers = atoms.positions[order], atoms.numbers[order]
    assert_close(atoms.get_forces(), forces[order], 1)


def test_model_given_is_not_changed_and_not_watched():
    model = random_model()
    atoms = random_cluster(5)
    calc = calculator(model, "float64")
    expected = calc.get_potential_energy(atoms)
    assert model.dtype == torch.float32
    assert all(parameter.requires_grad for parameter in model.embedding.parameters())
    model.readout.linear.weight.data.zero_()
    moved = atoms.copy()
    moved.positions += 1.0
    assert_close(calc.get_potential_energy(moved), expected, 0)


def test_float32_is_close_to_float64():
    for atoms in (rattled("CH3CH2OH"), water_box(8)):
        exact, single = calculator(), calculator(dtype="float32")
        expected = exact.get_forces(atoms)
        energy = exact.get_potential_energy(atoms)
        assert single.get_potential_energy(atoms) == pytest.approx(energy, abs=1e-5 * len(atoms))
        assert_within(single.get_forces(atoms), expected, 1e-4, floor=1.0)
        assert single.get_forces(atoms).dtype == np.float64


def test_path_model_and_name_give_one_calculator(tmp_path):
    model, atoms = random_model(), random_cluster(5)
    path = tmp_path / "model.safetensors"
    save_model(model, path)
    energies = {calculator(m).get_potential_energy(atoms) for m in (model, path, str(path))}
    assert len(energies) == 1
    default = {
        calculator(m).get_potential_energy(molecule("H2O"))
        for m in ("default", load_model("default"))
    }
    assert len(default) == 1


# What is refused


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"dtype": "float16"}, InputError, "use one of float32, float64"),
        ({"backend": "cuda"}, BackendError, "use 'auto'"),
        ({"device": "quantum"}, InputError, "use 'auto', 'cpu' or 'cuda'"),
        ({"model": "missing.ckpt"}, CheckpointError, "no model 'missing.ckpt'"),
        ({"skin": -0.1}, InputError, "skin must be"),
        ({"skin": np.nan}, InputError, "skin must be"),
    ],
)
def test_wrong_options_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        TensorNetCalculator(**options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about computers without a GPU")
def test_missing_gpu_is_said():
    with pytest.raises(BackendError, match="device='cpu' or 'auto'"):
        TensorNetCalculator(device="cuda")
    assert TensorNetCalculator(MODELS["O(3)"]).session.engine.device.type == "cpu"


def test_unknown_keywords_are_refused():
    with pytest.raises(TypeError):
        TensorNetCalculator(precision="high")


def test_vacuum_has_no_stress():
    atoms = random_cluster(4)
    atoms.calc = calculator(MODELS["O(3)"])
    atoms.get_forces()
    with pytest.raises(PropertyNotImplementedError):
        atoms.get_stress()
    atoms.set_cell([9.0, 9.0, 9.0])
    with pytest.raises(PropertyNotImplementedError):
        atoms.get_stress()
    atoms.pbc = True
    assert np.abs(atoms.get_stress()).max() > 0


BAD_CHANGES = {
    "NaN": (lambda a: a.positions.__setitem__((2, 1), np.nan), InputError, "atom 2 is NaN"),
    "infinity": (lambda a: a.positions.__setitem__((0, 0), np.inf), InputError, "atom 0 is NaN"),
    "overlap": (
        lambda a: a.positions.__setitem__(1, a.positions[0]),
        OverlappingAtomsError,
        "atoms 0 and 1",
    ),
    "element": (lambda a: a.numbers.__setitem__(0, 92), UnknownElementError, "does not know U;"),
    "charge": (lambda a: a.info.update(charge=0.5), InputError, "integer"),
    "no cell": (lambda a: a.set_pbc(True), InputError, "no independent cell vector"),
}


@pytest.mark.parametrize("change", BAD_CHANGES)
def test_after_an_error_no_stale_results_come_back(change):
    spoil, error, message = BAD_CHANGES[change]
    atoms = random_cluster(5)
    atoms.calc = calculator(MODELS["O(3)"])
    expected = atoms.get_forces()
    good = atoms.copy()
    spoil(atoms)
    for read in (atoms.get_forces, atoms.get_potential_energy, atoms.get_forces):
        with pytest.raises(error, match=message) as refusal:
            read()
        assert "\n" not in str(refusal.value)
        assert atoms.calc.results == {}
    assert np.array_equal(atoms.calc.get_forces(good), expected)


def test_no_atoms_are_refused():
    with pytest.raises(InputError, match="no atoms"):
        calculator(MODELS["O(3)"]).get_potential_energy(Atoms())
    with pytest.raises(InputError, match="no atoms"):
        calculator(MODELS["O(3)"]).calculate_many([random_cluster(3), Atoms()])


def test_images_of_one_atom_may_be_near_but_not_the_same():
    with pytest.raises(OverlappingAtomsError):
        calculator(MODELS["O(3)"]).get_potential_energy(
            Atoms("HH", [[0, 0, 0], [3, 0, 0]], cell=[3, 3, 3], pbc=True)
        )


# Copies, threads and databases


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda atoms: pickle.loads(pickle.dumps(atoms))])
def test_atoms_are_copied_and_pickled_with_their_calculator(copied):
    atoms = random_crystal(5)
    atoms.calc = calculator(MODELS["O(3)"], "float32")
    forces = atoms.get_forces()
    other = copied(atoms)
    assert other.calc.calculation_required(other, ["forces"]) is False
    assert np.array_equal(other.get_forces(), forces)
    for structure in (atoms, other):
        structure.positions += 0.1 * np.sin(np.arange(15.0)).reshape(5, 3)
    assert np.array_equal(other.get_forces(), atoms.get_forces())
    assert not np.array_equal(atoms.get_forces(), forces)


def test_parameters_say_what_computed_a_result(tmp_path):
    model = random_model()
    weights = calculator(model).parameters["weights"]
    atoms = random_cluster(5)
    atoms.calc = calculator(model, torch.float32)
    expected = {"model": "TensorNet", "weights": weights, "dtype": "float32", "device": "cpu"}
    assert atoms.calc.todict() == expected
    assert calculator().parameters["model"] == "default"
    assert calculator().parameters["weights"] != weights
    energy = atoms.get_potential_energy()
    with ase.db.connect(tmp_path / "results.db") as database:
        row = database.get(database.write(atoms))
    assert row.energy == energy
    assert row.calculator_parameters == expected


def test_threads_that_share_a_calculator_get_results_of_their_own_atoms(monkeypatch):
    """A thread computes other atoms, just before the first thread takes its result."""
    calc, ours, theirs = calculator(MODELS["O(3)"]), random_cluster(4), random_cluster(5)
    expected = [calc.get_potential_energy(atoms) for atoms in (ours, theirs)]
    calculate, computed, meanwhile = calc.calculate, threading.Event(), threading.Event()

    def slowly(atoms, *args):
        calculate(atoms, *args)
        if len(atoms) == len(ours):
            computed.set()
            meanwhile.wait(0.3)

    def other() -> float:
        computed.wait()
        energy = calc.get_potential_energy(theirs)
        meanwhile.set()
        return energy

    monkeypatch.setattr(calc, "calculate", slowly)
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(other)
        assert [calc.get_potential_energy(ours), found.result()] == expected


# Conservation of energy


def shadow_energies(
    energies: list[float], velocities: list[np.ndarray], forces: list[np.ndarray], masses, dt
) -> np.ndarray:
    """Return the energy that velocity Verlet conserves, up to terms of order dt^4.

    ``H + dt^2 (v H'' v / 12 - f m^-1 f / 24)``, with H'' from differences of forces along the
    trajectory (Hairer, Lubich, Wanner, Acta Numerica 12, 399 (2003), section 4). Its distance from
    the energy is bounded, so both have the same drift. As it does not oscillate with the
    vibrations, a hundredth of the time suffices to see the drift.
    """
    v, f = np.array(velocities), np.array(forces)
    curvature = -np.einsum("tia,tia->t", v[1:-1], f[2:] - f[:-2]) / (2 * dt)
    squares = (f[1:-1] ** 2 / masses[:, None]).sum(axis=(1, 2))
    return np.array(energies[1:-1]) + dt**2 * (curvature / 12 - squares / 24)


def drift(values: np.ndarray, times: np.ndarray) -> tuple[float, float]:
    """Return the slope of a linear fit and its standard error, for residuals correlated in time."""
    slope, offset = np.polyfit(times, values, 1)
    residuals = values - slope * times - offset
    correlation = np.correlate(residuals, residuals, "full")[len(values) - 1 :]
    correlation /= correlation[0]
    steps = max(1.0, 1 + 2 * correlation[1 : np.argmax(correlation < 0)].sum())
    spread = ((times - times.mean()) ** 2).sum()
    return slope, np.sqrt(steps * residuals.var(ddof=2) / spread)


def test_shadow_energy_and_drift_see_what_they_should():
    """A hundred oscillators have a force that is not quite the derivative of their energy."""
    dt, n_atoms, friction = 0.2, 100, 1e-6
    rng = np.random.default_rng(0)
    x, v = rng.normal(size=(2, n_atoms, 3))
    energies, velocities, forces = [], [], []
    f = -x
    for _ in range(4000):
        energies.append(float((v**2 + x**2).sum() / 2))
        velocities.append(v.copy())
        forces.append(f)
        v = v + dt / 2 * f
        x = x + dt * v
        f = -x - friction * v
        v = v + dt / 2 * f
    shadow = shadow_energies(energies, velocities, forces, np.ones(n_atoms), dt)
    times = dt * np.arange(len(shadow))
    slope, error = drift(shadow, times)
    dissipation = friction * np.mean([(v**2).sum() for v in velocities])
    assert slope == pytest.approx(-dissipation, rel=0.02)  # up to terms of order dt^2
    assert error < 0.01 * dissipation < drift(np.array(energies[1:-1]), times)[1]


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["cpu", "exact"])
def test_nve_conserves_energy(backend):
    """Alanine dipeptide at about 300 K in steps of 0.5 fs drifts by less than 1e-6 eV/atom/ps."""
    path = resources.files("mlff_triton") / "structures" / "alanine_dipeptide_water.xyz"
    atoms = ase.io.read(str(path))[:22]
    atoms.calc = calculator("tensornet-gfn2", dtype="float32", backend=backend)
    list(minimize(atoms))
    rng, dt = np.random.default_rng(0), 0.5 * units.fs
    draw_momenta(atoms, 600, rng)  # half of it becomes potential energy

    energies, velocities, forces = [], [], []

    def record() -> None:
        energies.append(atoms.get_total_energy())
        velocities.append(atoms.get_velocities())
        forces.append(atoms.get_forces())

    dynamics = VelocityVerlet(atoms, dt)
    dynamics.attach(record)
    dynamics.run(2000)
    shadow = shadow_energies(energies, velocities, forces, atoms.get_masses(), dt)
    times = np.arange(len(shadow)) * dt / (1000 * units.fs)
    slope, error = drift(shadow / len(atoms), times)
    assert np.std(shadow) < 0.1 * np.std(energies)
    assert error < 5e-7
    assert abs(slope) < 1e-6
