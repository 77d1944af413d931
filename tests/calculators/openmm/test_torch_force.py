"""The TorchForce route: its module as OpenMM-Torch calls it, and on a GPU real Contexts.

OpenMM-Torch's wheels need PyTorch for CUDA. Without it, the tests do what OpenMM-Torch does: they
write the module, read it again, freeze it, and call it with the tensors of a TorchForce.
"""

from __future__ import annotations

import ctypes
import io
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import molecule
from torch import Tensor

from mlff_triton import TensorNetCalculator
from mlff_triton.calculators.openmm import torch_force as openmm_torch
from mlff_triton.calculators.openmm.recipe import Recipe, lasting_model
from mlff_triton.calculators.openmm.torch_force import (
    KEPT_SYSTEMS,
    create_module,
    create_torch_force,
    torch_route_obstacle,
)
from mlff_triton.errors import BackendError
from mlff_triton.model.prediction import Ensemble
from mlff_triton.testing import water_box
from mlff_triton.units import EV_TO_KJ_PER_MOL, NM
from tests.support.tensornets import model_of

openmm = pytest.importorskip("openmm")

pytestmark = [
    pytest.mark.filterwarnings(r"ignore:`torch.jit.\w+`:DeprecationWarning"),
    pytest.mark.filterwarnings(  # of random structures
        "ignore::mlff_triton.model.known_domain.UnknownChemistryWarning"
    ),
]

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
SMALL = {"num_layers": 1, "hidden_channels": 16, "num_rbf": 6}
MOLECULE = molecule("CH3CH2OH")  # 9 atoms, which move gently


def recipe_of(atoms: Atoms, **options: Any) -> Recipe:
    options = {"model": "default", "device": "cpu", "dtype": "float64"} | options
    return Recipe(numbers=atoms.numbers, periodic=bool(atoms.pbc.all()), **options)


def in_openmm(module: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    """Return a module as a Context would call it."""
    return torch.jit.freeze(reread(module).eval())


def reread(module: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    file = io.BytesIO()
    torch.jit.save(module, file)
    file.seek(0)
    return torch.jit.load(file)


def arguments(atoms: Atoms, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    arrays = [atoms.positions, atoms.cell.array][: 1 + atoms.pbc.all()]
    return [torch.tensor(array / NM, dtype=dtype) for array in arrays]


def check(result: tuple[Tensor, Tensor], atoms: Atoms, tolerance: float = 1e-12) -> None:
    expected = atoms.copy()
    expected.calc = TensorNetCalculator(device="cpu", dtype="float64")
    energy, forces = result
    kj_per_mol = expected.get_potential_energy() * EV_TO_KJ_PER_MOL
    assert energy.item() == pytest.approx(kj_per_mol, rel=tolerance)
    kj_per_mol_nm = expected.get_forces() * EV_TO_KJ_PER_MOL * NM
    scale = np.abs(kj_per_mol_nm).max()
    assert np.abs(forces.cpu().numpy() - kj_per_mol_nm).max() <= tolerance * scale


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("atoms", [MOLECULE, water_box(8)], ids=["molecule", "water"])
def test_the_module_equals_the_calculator(atoms, device):
    module = in_openmm(create_module(recipe_of(atoms, device=device)))
    check(module(*(tensor.to(device) for tensor in arguments(atoms))), atoms, 1e-9)


def test_forces_have_the_dtype_of_positions():
    module = in_openmm(create_module(recipe_of(MOLECULE)))
    single = module(*arguments(MOLECULE, torch.float32))
    assert single[1].dtype == torch.float32
    assert single[1].is_contiguous()
    check(single, MOLECULE, 1e-4)  # positions were rounded


def test_positions_may_require_gradients():
    module = in_openmm(create_module(recipe_of(MOLECULE)))
    (positions,) = arguments(MOLECULE)
    energy, forces = module(positions.requires_grad_())  # as on the platform Reference
    check((energy.detach(), forces.detach()), MOLECULE)


def test_boxes_and_positions_may_change_at_every_step():
    atoms = water_box(8)
    module = in_openmm(create_module(recipe_of(atoms)))
    rng = np.random.default_rng(0)
    for _ in range(4):
        reduced = np.tril(rng.normal(0, 0.01, (3, 3)))  # lower triangular, as in OpenMM
        atoms.set_cell(atoms.cell.array @ (np.eye(3) + reduced), scale_atoms=True)
        atoms.positions += rng.normal(0, 0.1, (24, 3))
        check(module(*arguments(atoms)), atoms)


def test_a_box_that_the_model_does_not_see():
    """The System is periodic, and the model computes a molecule in it."""
    module = in_openmm(create_module(recipe_of(MOLECULE)))
    check(module(*arguments(MOLECULE), torch.eye(3)), MOLECULE)


@pytest.mark.parametrize("device", DEVICES)
def test_some_of_the_particles(device):
    particles = np.array([7, 2, 11, 3, 4, 5, 14, 9, 8])
    everything = np.random.default_rng(0).normal(0, 1, (16, 3))
    everything[particles] = MOLECULE.positions
    recipe = recipe_of(MOLECULE, particles=particles, device=device)
    module = in_openmm(create_module(recipe))
    for _ in range(2):
        energy, forces = module(torch.tensor(everything / NM, device=device))
        check((energy, forces[particles]), MOLECULE, 1e-9)
        others = np.setdiff1d(np.arange(16), particles)
        assert not forces[others].any()


def test_references_may_be_left_out():
    both = [create_module(recipe_of(MOLECULE, shift=shift)) for shift in (0.0, -123.25)]
    (energy, forces), (shifted, same) = (module(*arguments(MOLECULE)) for module in both)
    assert shifted.item() == pytest.approx(energy.item() + 123.25 * EV_TO_KJ_PER_MOL, rel=1e-12)
    assert torch.equal(forces, same)


@pytest.mark.parametrize("device", DEVICES)
def test_any_thread_may_call(device):
    module = in_openmm(create_module(recipe_of(MOLECULE, device=device)))
    results = []
    positions = arguments(MOLECULE)[0].to(device)
    threads = [threading.Thread(target=lambda: results.append(module(positions))) for _ in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    results.append(module(positions))
    assert len(results) == 3
    for result in results:
        check(result, MOLECULE, 1e-9)
        assert torch.equal(result[1], results[0][1])


def test_the_first_step_of_several_threads(monkeypatch):
    """One of them looks at the structure, slowly, while the others wait."""
    looks = []

    def look_slowly(*given: Any) -> None:
        looks.append(given)
        time.sleep(0.1)

    monkeypatch.setattr(openmm_torch, "_look_at", look_slowly)
    module = create_module(recipe_of(MOLECULE))
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: module(*arguments(MOLECULE)), range(4)))
    assert len(looks) == 1
    for result in results:
        check(result, MOLECULE)


def test_models_in_memory():
    model = Ensemble([model_of(**SMALL), model_of(**SMALL)])
    recipe = recipe_of(MOLECULE, model=lasting_model(model))
    energy, _ = create_module(recipe)(*arguments(MOLECULE))
    atoms = MOLECULE.copy()
    atoms.calc = TensorNetCalculator(model, device="cpu", dtype="float64")
    assert energy.item() == pytest.approx(atoms.get_potential_energy() * EV_TO_KJ_PER_MOL, 1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x[:8], "the System has 8 particles, but the force was made for 9"),
        (lambda x: torch.cat([x, x + 5]), "the System has 18 particles, .* made for 9"),
        (lambda x: x * torch.nan, "InputError: .* NaN or infinite"),
        (lambda x: 0 * x, "mlff_triton: OverlappingAtomsError: atoms"),
    ],
)
def test_errors_are_told_in_one_line(change, message):
    module = in_openmm(create_module(recipe_of(MOLECULE)))
    (positions,) = arguments(MOLECULE)
    with pytest.raises(RuntimeError, match=message):
        module(change(positions))
    check(module(positions), MOLECULE)


def test_particles_that_the_system_lacks():
    module = create_module(recipe_of(MOLECULE, particles=np.arange(9) + 20))
    with pytest.raises(RuntimeError, match="has 28 particles, but the force was made for 29"):
        module(torch.rand(28, 3))


def test_what_is_impossible_fails_when_the_force_is_made():
    with pytest.raises(BackendError, match="GPU"):
        create_module(recipe_of(MOLECULE, backend="triton-graph"))


@pytest.fixture
def no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the forces made before, as if in another process."""
    monkeypatch.setattr(openmm_torch, "_recipes", {})
    openmm_torch._system_of.cache_clear()


def test_a_file_is_good_for_another_process(tmp_path):
    water = water_box(8)
    create_module(recipe_of(water, shift=-12.5)).save(tmp_path / "force.pt")
    script = """
import sys, warnings, torch
warnings.simplefilter("ignore")
import mlff_triton.calculators.openmm.torch_force
*arguments, module = torch.load(sys.argv[1]) + [torch.jit.load(sys.argv[2])]
torch.save(module(*arguments), sys.argv[1])
"""
    exchange = tmp_path / "exchange.pt"
    torch.save(arguments(water), exchange)
    command = [sys.executable, "-c", script, str(exchange), str(tmp_path / "force.pt")]
    subprocess.run(command, check=True)  # noqa: S603 (the script is above)
    energy, forces = torch.load(exchange)
    check((energy - 12.5 * EV_TO_KJ_PER_MOL, forces), water)


@pytest.mark.usefixtures("no_memory")
def test_recipes_in_files_are_whole():
    recipe = recipe_of(MOLECULE, particles=np.arange(9), charge=0, skin=0.25, shift=0.1)
    module = reread(create_module(recipe))
    found = openmm_torch._decode(module.recipe)
    for name, value in vars(recipe).items():
        assert np.array_equal(getattr(found, name), value), name


@pytest.mark.usefixtures("no_memory")
def test_a_model_in_memory_is_not_in_a_file():
    module = reread(create_module(recipe_of(MOLECULE, model=lasting_model(model_of(**SMALL)))))
    module(*arguments(MOLECULE))
    openmm_torch._recipes.clear()
    with pytest.raises(RuntimeError, match=r"in another process, .* use route='python'"):
        module(*arguments(MOLECULE))


def test_few_systems_are_kept():
    recipe = recipe_of(MOLECULE, model=lasting_model(model_of(**SMALL)))
    modules = [create_module(recipe) for _ in range(KEPT_SYSTEMS + 2)]
    assert openmm_torch._system_of.cache_info().currsize == KEPT_SYSTEMS
    energies = {module(*arguments(MOLECULE))[0].item() for module in modules}
    assert len(energies) == 1
    assert openmm_torch._system_of.cache_info().currsize == KEPT_SYSTEMS


@pytest.fixture
def loader(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """Replace OpenMM-Torch and all that it needs, for the loader to find."""
    cuda = SimpleNamespace(supportsKernels=lambda _: True)
    platforms = SimpleNamespace(
        getPlatformByName=lambda _: cuda, getDefaultPluginsDirectory=lambda: "plugins"
    )
    modules = {
        "openmm": SimpleNamespace(
            Platform=platforms, OpenMMException=openmm.OpenMMException, version=openmm.version
        ),
        "openmmtorch": SimpleNamespace(TorchForce=None),
    }
    parts = SimpleNamespace(
        find_spec=modules.get,
        import_module=modules.__getitem__,
        version=lambda _: "1.5",
        modules=modules,
        platforms=platforms,
        cuda=cuda,
    )
    for name in ("find_spec", "import_module", "version"):
        monkeypatch.setattr(openmm_torch, name, getattr(parts, name))
    monkeypatch.setattr(torch, "__version__", "2.11.0+cu130")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    openmm_torch.import_openmmtorch.cache_clear()
    yield parts
    openmm_torch.import_openmmtorch.cache_clear()


def test_nothing_is_in_the_way(loader):
    assert torch_route_obstacle() is None
    assert openmm_torch.import_openmmtorch() is loader.modules["openmmtorch"]


@pytest.mark.parametrize("missing", ["libnvrtc.so.12", "libcudart.so.12", None])
def test_nvrtc_is_provided_if_it_is_what_is_missing(loader, monkeypatch, missing):
    provided = []

    def import_module(name):
        if name == "openmmtorch" and missing and not provided:
            raise ImportError(f"{missing}: cannot open shared object file")
        return loader.modules[name]

    monkeypatch.setattr(openmm_torch, "import_module", import_module)
    monkeypatch.setattr(openmm_torch, "provide_nvrtc", lambda: provided.append("NVRTC"))
    obstacle = torch_route_obstacle()
    assert len(provided) == (missing == openmm_torch.NVRTC)
    if missing == "libcudart.so.12":
        assert obstacle.startswith("OpenMM-Torch cannot be loaded: libcudart.so.12")
    else:
        assert obstacle is None


def test_openmm_torch_may_be_missing(loader):
    del loader.modules["openmmtorch"]
    assert torch_route_obstacle() == (
        "OpenMM-Torch is missing: pip install 'openmmtorch[cuda13]' nvidia-cuda-nvrtc-cu12"
    )
    with pytest.raises(BackendError, match="OpenMM-Torch is missing"):
        create_torch_force(recipe_of(MOLECULE))


@pytest.mark.usefixtures("loader")
def test_pytorch_may_lack_cuda(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "needs PyTorch for CUDA" in torch_route_obstacle()


@pytest.mark.usefixtures("loader")
def test_pytorch_may_be_too_new(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.13.1+cu130")
    assert torch_route_obstacle().endswith("PyTorch 2.13.1+cu130: pip install 'torch<2.13'")
    monkeypatch.setattr(openmm_torch, "version", lambda _: "1.6")
    assert torch_route_obstacle() is None


@pytest.mark.usefixtures("loader")
def test_libraries_may_be_missing(monkeypatch):
    def fail(_):
        raise ImportError("libtorch_cuda.so: no such file")

    monkeypatch.setattr(openmm_torch, "import_module", fail)
    assert torch_route_obstacle() == (
        "OpenMM-Torch cannot be loaded: libtorch_cuda.so: no such file"
    )


def test_plugins_are_loaded_if_they_could_not_be_before(loader):
    loaded = []
    loader.cuda.supportsKernels = lambda _: bool(loaded[1:])
    loader.platforms.loadPluginLibrary = loaded.append
    assert torch_route_obstacle() is None
    names = [Path(path).name for path in loaded]
    assert names == ["libOpenMMTorchReference.so", "libOpenMMTorchCUDA.so"]


def test_plugins_may_be_missing(loader):
    def fail(path):
        raise openmm.OpenMMException(f"Error loading library {path}")

    loader.cuda.supportsKernels = lambda _: False
    loader.platforms.loadPluginLibrary = fail
    assert "pip install openmm-torch-cuda-13" in torch_route_obstacle()


@pytest.fixture
def libraries(monkeypatch, tmp_path) -> list[str]:
    """Replace the folder of packages and the dynamic linker, which finds libraries by path only."""
    tried = []

    def load(path: str) -> None:
        tried.append(path)
        if not Path(path).exists():
            raise OSError(f"{path}: cannot open shared object file")

    monkeypatch.setattr(torch, "__file__", str(tmp_path / "torch" / "__init__.py"))
    monkeypatch.setattr(ctypes, "CDLL", load)
    return tried


def test_nvrtc_comes_from_its_wheel(libraries, tmp_path):
    wheel = tmp_path / "nvidia" / "cuda_nvrtc" / "lib"
    wheel.mkdir(parents=True)
    (wheel / openmm_torch.NVRTC).touch()
    openmm_torch.provide_nvrtc()
    assert libraries == [openmm_torch.NVRTC, str(wheel / openmm_torch.NVRTC)]


def test_without_nvrtc_its_wheel_is_named(libraries):
    with pytest.raises(OSError, match="is missing: pip install nvidia-cuda-nvrtc-cu12"):
        openmm_torch.provide_nvrtc()
    assert libraries == [openmm_torch.NVRTC]


@pytest.fixture
def cuda_platform() -> Any:
    obstacle = torch_route_obstacle()
    if obstacle is not None:
        pytest.skip(obstacle)
    return openmm.Platform.getPlatformByName("CUDA")


def context_of(
    atoms: Atoms, platform: Any, precision: str = "mixed", *others: Any, **options: Any
) -> Any:
    """Make a Context of a force for the atoms, and of other forces."""
    system = openmm.System()
    for mass in atoms.get_masses():
        system.addParticle(mass)
    if atoms.pbc.all():
        system.setDefaultPeriodicBoxVectors(*atoms.cell.array / NM)
    dtype = "float64" if precision == "double" else "float32"
    recipe = recipe_of(atoms, device="cuda", dtype=dtype)
    system.addForce(create_torch_force(replace(recipe, **options)))
    for force in others:
        system.addForce(force)
    integrator = openmm.LangevinMiddleIntegrator(300, 1, 0.0005)
    context = openmm.Context(system, integrator, platform, {"Precision": precision})
    context.setPositions(atoms.positions / NM)
    return context


def check_context(context: Any, atoms: Atoms, precision: str = "mixed") -> None:
    """Compare a Context with the calculator.

    Positions reach the model wrapped into the box, in single precision unless OpenMM computes in
    double precision.
    """
    state = context.getState(energy=True, forces=True, positions=True)
    now = atoms.copy()
    if atoms.pbc.all():
        now.set_cell(state.getPeriodicBoxVectors(asNumpy=True)._value * NM)
    positions = state.getPositions(asNumpy=True)._value
    if precision == "mixed":
        positions = positions.astype(np.float32).astype(np.float64)
    now.positions = positions * NM
    energy = torch.tensor(state.getPotentialEnergy()._value, dtype=torch.float64)
    forces = torch.tensor(state.getForces(asNumpy=True)._value)
    check((energy, forces), now, 1e-6 if precision == "double" else 1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["double", "mixed"])
@pytest.mark.parametrize("atoms", [MOLECULE, water_box(64)], ids=["molecule", "water"])
def test_contexts_equal_the_calculator(cuda_platform, atoms, precision):
    context = context_of(atoms, cuda_platform, precision)
    check_context(context, atoms, precision)
    context.getIntegrator().step(50)
    check_context(context, atoms, precision)


@pytest.mark.gpu
def test_contexts_whose_box_is_set(cuda_platform):
    atoms = water_box(64)
    tilted = np.eye(3) + 0.02 * np.tril(np.ones((3, 3)), -1)  # boxes cannot become tilted later
    atoms.set_cell(atoms.cell.array @ tilted, scale_atoms=True)
    context = context_of(atoms, cuda_platform, "double")
    for strain in (0.0, 0.01, -0.03):
        reduced = np.eye(3) + strain * np.tril(np.ones((3, 3)))
        atoms.set_cell(atoms.cell.array @ reduced, scale_atoms=True)
        context.setPeriodicBoxVectors(*atoms.cell.array / NM)
        context.setPositions(atoms.positions / NM)
        check_context(context, atoms, "double")


@pytest.mark.gpu
def test_contexts_with_a_barostat(cuda_platform):
    atoms = water_box(64)
    context = context_of(atoms, cuda_platform, "mixed", openmm.MonteCarloBarostat(1.0, 300, 5))
    for _ in range(5):
        context.getIntegrator().step(20)
        check_context(context, atoms)


@pytest.mark.gpu
def test_contexts_step_in_turn_and_in_threads(cuda_platform):
    boxes = [water_box(27), water_box(64)]
    contexts = [context_of(atoms, cuda_platform) for atoms in boxes]
    for _ in range(3):
        for context in contexts:
            context.getIntegrator().step(3)
    threads = [threading.Thread(target=c.getIntegrator().step, args=[20]) for c in contexts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for context, atoms in zip(contexts, boxes, strict=True):
        check_context(context, atoms)


@pytest.mark.gpu
def test_contexts_tell_what_is_wrong(cuda_platform):
    context = context_of(MOLECULE, cuda_platform, numbers=MOLECULE.numbers[:8])
    with pytest.raises(Exception, match="has 9 particles, but the force was made for 8"):
        context.getState(energy=True)
