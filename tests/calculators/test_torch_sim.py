"""The model of TorchSim: its interface, conventions, errors, and simulations with TorchSim itself.

Without TorchSim, all but the last tests run with a double of its classes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import partial
from importlib.metadata import PackageNotFoundError
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import molecule

import mlff_triton
from mlff_triton import Engine, Ensemble, TensorNetCalculator
from mlff_triton._common.remedies import install
from mlff_triton.errors import DeviceMemoryError, InputError, UnknownElementError
from mlff_triton.testing import random_cluster, random_crystal, water_box
from tests.support.tensornets import model_of
from tests.support.torch_sim_double import state_of

ROOT = Path(mlff_triton.__file__).parents[1]
HAS_TORCH_SIM = find_spec("torch_sim") is not None
NETWORK = model_of(
    elements=(1, 6, 7, 8, 12, 14, 26), hidden_channels=32, num_rbf=6, num_layers=2, cutoff_upper=3.5
)
HOME = "mlff_triton.calculators.torch_sim_model"

pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch_sim"),
]
needs_torch_sim = pytest.mark.skipif(
    not HAS_TORCH_SIM, reason="needs TorchSim: pip install 'mlff-triton[torch-sim]'"
)
devices = pytest.mark.parametrize(
    ("device", "backend"),
    [
        ("cpu", "torch"),
        ("cpu", "cpu"),
        pytest.param("cuda", "torch", marks=pytest.mark.gpu),
        pytest.param("cuda", "triton", marks=pytest.mark.gpu),
        pytest.param("cuda", "triton-graph", marks=pytest.mark.gpu),
    ],
)


def model_on(home: Any, device: str, backend: str, **options: Any) -> Any:
    options = {"model": NETWORK, "dtype": "float64", **options}
    return home.TorchSimModel(options.pop("model"), device=device, backend=backend, **options)


def calculated(atoms: Atoms, network: object = NETWORK) -> tuple[float, np.ndarray, np.ndarray]:
    """Return energy, forces and stress of the exact model through ASE."""
    atoms = atoms.copy()
    atoms.calc = TensorNetCalculator(network, device="cpu", dtype="float64", backend="exact")
    stress = atoms.get_stress(voigt=False) if atoms.pbc.any() else np.full((3, 3), np.nan)
    return atoms.get_potential_energy(), atoms.get_forces(), stress


def check(results: dict[str, torch.Tensor], *systems: Atoms) -> None:
    energies, forces, stresses = zip(*map(calculated, systems), strict=True)
    assert_near(results["energy"], np.array(energies))
    assert_near(results["forces"], np.concatenate(forces))
    assert_near(results["stress"], np.stack(stresses))


def assert_near(found: torch.Tensor, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found.cpu(), expected, rtol=0, atol=1e-8)


@devices
@pytest.mark.parametrize("kind", ["triclinic", "slab", "vacuum"])
def test_results_are_those_of_the_exact_model(home, device, backend, kind):
    """Cells are columns, and molecules have no cell at all."""
    make = random_cluster if kind == "vacuum" else partial(random_crystal, kind=kind)
    systems = [make(n, seed=n) for n in (5, 9)]
    model = model_on(home, device, backend)
    check(model(state_of(home, model, *systems)), *systems)


@devices
def test_atoms_need_not_be_wrapped(home, device, backend):
    atoms = random_crystal(9, "triclinic")
    model = model_on(home, device, backend)
    expected = model(state_of(home, model, atoms))
    atoms.positions[2] += 300 * atoms.cell.array[0] - 200 * atoms.cell.array[1]
    found = model(state_of(home, model, atoms))
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-6, atol=1e-6)


@devices
def test_a_state_may_change_between_calls(home, device, backend):
    systems = [random_crystal(5, "triclinic", seed=1), random_crystal(7, "triclinic", seed=2)]
    model = model_on(home, device, backend)
    state = state_of(home, model, *systems)
    rng = np.random.default_rng(0)
    for _ in range(3):
        check(model(state), *systems)
        for atoms in systems:
            atoms.set_cell(atoms.cell.array @ (np.eye(3) + rng.normal(0, 0.01, (3, 3))), True)
            atoms.positions += rng.normal(0, 0.3, atoms.positions.shape)
        new = state_of(home, model, *systems)
        state.positions, state.cell = new.positions, new.cell


@devices
@pytest.mark.parametrize("name", ["charge", "total_charge"])
def test_charges_are_those_of_the_state(home, device, backend, name):
    systems = [molecule("H2O"), molecule("CH4")]
    model = model_on(home, device, backend)
    state = state_of(home, model, *systems)
    neutral = model(state)["energy"]
    setattr(state, name, torch.tensor([3.0, 0.0], device=model.device))
    charged = model(state)["energy"]
    systems[0].info["charge"] = 3
    expected = [calculated(atoms)[0] for atoms in systems]
    assert_near(charged, np.array(expected))
    assert abs(charged[0] - neutral[0]) > 1e-5
    assert charged[1] == neutral[1]


@devices
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_results_have_the_dtype_of_the_state(home, device, backend, dtype):
    model = model_on(home, device, backend, dtype="float32", state_dtype=dtype)
    assert (model.dtype, model.engine.dtype) == (dtype, torch.float32)
    state = state_of(home, model, random_crystal(5, "cubic"))
    state.positions.requires_grad_()
    before = [state.positions.detach().clone(), state.cell.clone(), state.atomic_numbers.clone()]
    results = model(state)
    for tensor in results.values():
        assert (tensor.dtype, tensor.device.type) == (dtype, device)
        assert not tensor.requires_grad
    after = [state.positions.detach(), state.cell, state.atomic_numbers]
    assert all(map(torch.equal, before, after))


def test_flags(home):
    model = model_on(home, "cpu", "torch", compute_forces=False, compute_stress=False)
    state = state_of(home, model, random_crystal(3, "cubic"))
    assert set(model(state)) == {"energy"}
    model.compute_stress = True
    assert set(model(state)) == {"energy", "stress"}
    model.compute_forces = True
    assert set(model(state)) == {"energy", "forces", "stress"}
    assert model.memory_scales_with == "n_atoms"
    assert model.device == torch.device("cpu")


def test_dictionaries_are_states(home):
    model = model_on(home, "cpu", "torch")
    state = state_of(home, model, random_cluster(5))
    names = ("positions", "cell", "pbc", "atomic_numbers", "system_idx")
    found = model({name: getattr(state, name) for name in names})
    assert torch.equal(found["forces"], model(state)["forces"])


@devices
def test_ensembles(home, device, backend):
    shifted = model_of(elements=(1, 6, 7, 8), num_layers=1, hidden_channels=32)
    shifted.mean += 1
    ensemble = Ensemble([NETWORK, shifted])
    atoms = random_cluster(5)
    model = model_on(home, device, backend, model=ensemble)
    found = model(state_of(home, model, atoms))
    energy, forces, _ = calculated(atoms, ensemble)
    assert_near(found["energy"], np.array([energy]))
    assert_near(found["forces"], forces)


@devices
def test_what_cannot_be_is_refused(home, device, backend):
    model = model_on(home, device, backend)
    gold = Atoms("Au", cell=np.eye(3) * 4, pbc=True)
    with pytest.raises(UnknownElementError, match="does not know Au"):
        model(state_of(home, model, gold))
    state = state_of(home, model, random_cluster(3))
    state.cell = state.cell[0]
    with pytest.raises(InputError, match="cell has shape"):
        model(state)
    with pytest.raises(InputError, match="not a floating-point type"):
        model_on(home, device, backend, state_dtype=torch.int32)


@pytest.mark.parametrize("found", ["0.2.2", "0.7.0", "1.0"])
def test_other_versions_are_refused(home, found):
    with (
        mock.patch.object(home, "version", return_value=found),
        pytest.raises(InputError, match=rf"TorchSim {found} is not supported: pip install"),
    ):
        home._check_version()


@pytest.mark.parametrize("found", ["0.3.0", "0.6.2"])
def test_these_versions_are_not_refused(home, found):
    with mock.patch.object(home, "version", return_value=found):
        home._check_version()


def test_torch_sim_may_be_missing(home):
    with (
        mock.patch.object(home, "version", side_effect=PackageNotFoundError),
        pytest.raises(InputError, match=re.escape(f"missing: {install('torch-sim')}")),
    ):
        home._check_version()


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning")
@pytest.mark.parametrize("backend", ["triton", "triton-graph"])
def test_calls_do_not_wait(home, backend):
    systems = [water_box(8) for _ in range(3)]
    model = home.TorchSimModel(device="cuda", backend=backend)
    state = state_of(home, model, *systems)
    model(state)
    noise = [0.3 * torch.randn_like(state.positions) for _ in range(5)]
    first = state.positions
    found = []
    try:
        torch.cuda.set_sync_debug_mode("error")
        for shift in noise:
            state.positions = first + shift
            state.cell = 1.001 * state.cell
            found.append(model(state))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    engine = Engine("default", "cuda")
    expected = engine.compute(
        state.atomic_numbers, state.positions, state.cell.mT, True, state.system_idx
    )
    torch.testing.assert_close(found[-1]["forces"], expected.forces.float(), rtol=1e-4, atol=1e-4)
    assert all(results["forces"].isfinite().all() for results in found)


@pytest.mark.gpu
def test_a_long_trajectory_keeps_its_slots(home):
    """Water moves at random for a thousand calls, while the host runs ahead of the GPU."""
    atoms = water_box(64)
    model = home.TorchSimModel(device="cuda")
    state = state_of(home, model, atoms)
    positions = state.positions
    steps = 0.02 * torch.randn(1000, *positions.shape, device="cuda")
    energies = []
    for step in steps:
        state.positions = positions + step
        energies.append(model(state)["energy"])
    assert torch.cat(energies).isfinite().all()


@needs_torch_sim
@devices
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_outputs_are_valid(home, device, backend, dtype):
    from torch_sim.models.interface import validate_model_outputs

    model = model_on(home, device, backend, state_dtype=dtype)
    validate_model_outputs(model, model.device, dtype)


@needs_torch_sim
def test_autobatchers_recognize_that_memory_is_lacking(home):
    from torch_sim import autobatching

    model = model_on(home, "cpu", "torch")
    state = state_of(home, model, random_cluster(3))
    sizes = []

    def queue(numbers, *_):
        sizes.append(len(numbers))
        if len(numbers) > 30:
            raise DeviceMemoryError("CUDA out of memory: use fewer atoms at a time")

    with (
        mock.patch.object(model.engine, "queue", queue),
        mock.patch.object(model, "forward", lambda state: queue(state.atomic_numbers)),
        mock.patch.object(autobatching, "measure_model_memory_forward", lambda s, m: m(s)),
    ):
        fitting = autobatching.determine_max_batch_size(state, model, max_atoms=1000)
    assert sizes[-1] > 30
    assert 0 < 3 * fitting <= 30


@needs_torch_sim
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_relaxations_in_changing_batches(home, device):
    """Molecules leave and enter the batch; each ends without forces."""
    import torch_sim

    molecules = [molecule(name) for name in ("H2O", "CH4", "NH3", "CH3OH")]
    model = home.TorchSimModel(device=device, state_dtype=torch.float64)
    fire = getattr(torch_sim, "Optimizer", torch_sim.optimizers).fire
    relaxed = torch_sim.optimize(
        molecules,
        model,
        optimizer=fire,
        convergence_fn=torch_sim.generate_force_convergence_fn(0.02, include_cell_forces=False),
        max_steps=300,
        autobatcher=torch_sim.InFlightAutoBatcher(
            model, memory_scales_with="n_atoms", max_memory_scaler=10
        ),
    )
    positions = np.split(relaxed.positions.cpu().numpy(), np.cumsum([3, 5, 4]))
    for atoms, points in zip(molecules, positions, strict=True):
        atoms.positions = points
        assert np.abs(calculated(atoms, "default")[1]).max() < 0.03


@needs_torch_sim
def test_the_example(tmp_path):
    command = ["08_torch_sim.py", "--copies", "2", "--steps", "4", "--device", "cpu"]
    done = subprocess.run(  # noqa: S603 - the script is that of the repository
        [sys.executable, str(ROOT / "examples" / command[0]), *command[1:]],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line.split() for line in done.stdout.splitlines() if " eV, averaged" in line]
    assert [line[0] for line in lines] == ["H2O", "CH3OH", "CH3CH2OH"]
    assert all(-500 < float(line[1]) < -100 for line in lines)
