"""TensorNet as a TorchForce of OpenMM-Torch: on CUDA, positions and forces stay on the GPU.

A TorchForce holds a TorchScript module, which OpenMM copies, writes to files and calls from C++.
Our module calls one registered operator. It holds a handle, a number by which this process finds
the engine, and a recipe, from which any other process can make the engine again.
"""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import warnings
from collections.abc import Callable
from functools import cache, lru_cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from mlff_triton._common.torch_settings import with_own_settings
from mlff_triton.calculators._plausibility import Plausibility
from mlff_triton.calculators.openmm.recipe import Recipe
from mlff_triton.engine.batch import Batch
from mlff_triton.engine.engine import Engine
from mlff_triton.engine.fork_lock import ForkLock
from mlff_triton.engine.steps import Units
from mlff_triton.errors import BackendError, InputError
from mlff_triton.units import EV_TO_KJ_PER_MOL, NM

if TYPE_CHECKING:
    import openmm

OPENMM_UNITS = Units(length=NM, energy=1 / EV_TO_KJ_PER_MOL)
KEPT_SYSTEMS = 8
STEPS_PER_CHECK = 100  # of images; the host waits for the device for these
NVRTC = "libnvrtc.so.12"
"""Library that OpenMM-Torch's wheels require although they call nothing in it.

PyTorch adds NVRTC to everything that is linked with it, and PyTorch for CUDA 13 comes with another
version: https://github.com/pytorch/pytorch/issues/64692.
"""
TOO_NEW = {"1.5": (2, 13)}
"""First version of PyTorch that the wheels of a version of OpenMM-Torch do not support."""

Loaded = TypeVar("Loaded")

_recipes: dict[int, Recipe] = {}


def create_torch_force(recipe: Recipe) -> openmm.Force:
    """Make a TorchForce.

    OpenMM takes ownership of forces and copies them in C++, so Python does not know when they are
    deleted. The engines of the `KEPT_SYSTEMS` forces used last are kept. The engine of any other
    force is made again when the force is used.

    Parameters
    ----------
    recipe : Recipe
        Model, atoms and options.

    Returns
    -------
    openmmtorch.TorchForce
        For any platform that OpenMM-Torch supports.

    Notes
    -----
    OpenMM-Torch 1.5 writes a System with any TorchForce to a file, but crashes when it reads the
    file with PyTorch 2.11. For Systems that are read again, use route="python".

    OpenMM-Torch passes positions on as OpenMM's CUDA platform stores them: in single precision,
    unless the platform uses double precision, and with molecules wrapped into the box. A
    model without periodicity makes them whole by the bonds of the topology.

    Raises
    ------
    BackendError
        If OpenMM-Torch does not work here, or the device or the backend cannot serve the model.
    """
    force = import_openmmtorch().TorchForce(create_module(recipe))
    force.setOutputsForces(True)
    force.setUsesPeriodicBoundaryConditions(recipe.uses_box)
    return force


def create_module(recipe: Recipe) -> torch.jit.ScriptModule:
    """Make the module of a TorchForce.

    It maps positions [M, 3] and the box [3, 3] to the energy [] and forces [M, 3], in OpenMM's
    units, nm, kJ/mol and kJ/mol/nm. Forces have the dtype of positions, as OpenMM-Torch would free
    forces of another dtype before using them.
    """
    handle = secrets.randbits(62)  # random, because modules in files come from other processes
    _recipes[handle] = recipe
    _system_of(handle)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.jit.script`", DeprecationWarning)
        module: torch.jit.ScriptModule = torch.jit.script(_Call(handle, _encode(recipe)))
    return module


class OpenMMSystem:
    """A resident system in OpenMM's units, with all particles of the System.

    Parameters
    ----------
    recipe : Recipe
        Model, atoms and options.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        engine = recipe.engine()
        any_box = 1e4 * np.eye(3) if recipe.periodic else None  # each step passes its own
        self.resident = engine.resident(
            recipe.numbers, any_box, recipe.periodic, recipe.charge, OPENMM_UNITS
        )
        self._lock = ForkLock(is_lost_by_fork=False)  # Contexts may step in several threads
        self._new_engine: Engine | None = engine  # until the first step
        self._molecules = recipe.molecules()
        self._cutoff = engine.cutoff / NM
        self._n_steps = 0
        self._own_box = torch.eye(3) if recipe.box is None else torch.from_numpy(recipe.box)
        self._particles: Tensor | None = None
        if recipe.particles is not None:
            self._particles = torch.from_numpy(recipe.particles)
            self._last_particle = int(recipe.particles.max())

    def step(self, positions: Tensor, box: Tensor | None) -> tuple[Tensor, Tensor]:
        """Compute energy and forces, see `create_module`."""
        with self._lock:
            return self._step(positions, box)

    def _step(self, positions: Tensor, box: Tensor | None) -> tuple[Tensor, Tensor]:
        self._check(len(positions))
        ours = positions
        if self._particles is not None:
            self._particles = self._particles.to(positions.device)
            ours = positions.index_select(0, self._particles)
        if self._molecules is not None:
            self._own_box = self._own_box.to(ours)  # once
            own_box = self._own_box if box is None else box
            ours = self._molecules.whole_on_device(ours, own_box)
            if self._n_steps % STEPS_PER_CHECK == 0 and self._molecules.interact:
                whole, vectors = (tensor.double().cpu().numpy() for tensor in (ours, own_box))
                self._molecules.check_images(whole, vectors, self._cutoff)
            self._n_steps += 1
        box = box if self.recipe.periodic else None
        if self._new_engine is not None:
            _look_at(self._batch(ours, box), self._new_engine)
            self._new_engine = None
        energy, forces = self.resident.step(ours, box)
        if self.recipe.shift:
            energy -= self.recipe.shift * EV_TO_KJ_PER_MOL
        forces = forces.to(positions.device)
        if self._particles is not None:
            forces = torch.zeros_like(positions).index_copy_(0, self._particles, forces)
        return energy, forces

    def _batch(self, positions: Tensor, box: Tensor | None) -> Batch:
        recipe, cell = self.recipe, None if box is None else NM * box.double()
        return Batch.of(
            recipe.numbers, NM * positions.double(), cell, recipe.periodic, charge=recipe.charge
        )

    def _check(self, n_particles: int) -> None:
        needed = self._last_particle + 1 if self._particles is not None else self.resident.n_atoms
        if n_particles < needed or (self._particles is None and n_particles > needed):
            raise InputError(
                f"the System has {n_particles} particles, but the force was made for {needed}: "
                "make it from the System's own topology, or name the atoms by particles=[...]"
            )


def _look_at(batch: Batch, engine: Engine) -> None:
    """Check the first structure, and the uncertainty of the model's results for it."""
    checks = Plausibility.of(engine)
    checks.check(batch)
    if engine.uncertainty_limit is not None:  # steps return only energy and forces
        checks.judge(batch, engine.evaluate(batch))


@with_own_settings
def openmm_step(
    handle: int, recipe: Tensor, positions: Tensor, box: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Implement the operator ``mlff_triton::openmm_step``, which OpenMM may call in any thread."""
    try:
        if handle not in _recipes:
            _recipes[handle] = _decode(recipe)
        return _system_of(handle).step(positions, box)
    except Exception as error:  # OpenMM passes on the message of an exception, but not its class
        line = str(error).partition("\n")[0]
        raise RuntimeError(f"mlff_triton: {type(error).__name__}: {line}") from error


_LIBRARY = torch.library.Library("mlff_triton", "FRAGMENT")
_LIBRARY.define(
    "openmm_step(int handle, Tensor recipe, Tensor positions, Tensor? box) -> (Tensor, Tensor)"
)
_LIBRARY.impl("openmm_step", openmm_step, "CompositeExplicitAutograd")


class _Call(nn.Module):
    """The operator and its constant arguments, in the subset of Python that TorchScript knows."""

    def __init__(self, handle: int, recipe: Tensor) -> None:
        super().__init__()
        self.handle = handle
        self.recipe = recipe

    def forward(self, positions: Tensor, box: Tensor | None = None) -> tuple[Tensor, Tensor]:
        result: tuple[Tensor, Tensor] = torch.ops.mlff_triton.openmm_step(
            self.handle, self.recipe, positions, box
        )
        return result


@lru_cache(KEPT_SYSTEMS)
def _system_of(handle: int) -> OpenMMSystem:
    return OpenMMSystem(_recipes[handle])


def _encode(recipe: Recipe) -> Tensor:
    """Encode a recipe as JSON, which runs no code when read, without a model that is in memory."""
    fields = {
        name: value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in vars(recipe).items()
    }
    if isinstance(recipe.model, bytes):
        fields["model"] = None
    return torch.frombuffer(bytearray(json.dumps(fields).encode()), dtype=torch.uint8)


def _decode(encoded: Tensor) -> Recipe:
    fields = json.loads(encoded.cpu().numpy().tobytes())
    if fields["model"] is None:
        raise BackendError(
            "this TorchForce was made in another process, from a model in its memory: save the "
            "model and pass its path, or use route='python', which stores models in files"
        )
    for name in ("numbers", "particles", "bonds"):
        if fields[name] is not None:
            fields[name] = np.array(fields[name], dtype=np.int64)
    if fields["bonds"] is not None:
        fields["bonds"] = fields["bonds"].reshape(-1, 2)
        fields["box"] = np.array(fields["box"])
    return Recipe(**fields)


def torch_route_obstacle() -> str | None:
    """Return why no TorchForce can be made here and what to do, in one line, or None."""
    try:
        import_openmmtorch()
    except BackendError as error:
        return str(error)
    return None


@cache
def import_openmmtorch() -> Any:
    """Import `openmmtorch` and load its plug-ins, in whatever order modules were imported before.

    Its libraries need those of PyTorch, which are loaded with PyTorch, and `NVRTC`.

    Raises
    ------
    BackendError
        If something is missing. The message says what to do.
    """
    if find_spec("openmmtorch") is None:
        raise BackendError(
            "OpenMM-Torch is missing: pip install 'openmmtorch[cuda13]' nvidia-cuda-nvrtc-cu12"
        )
    if torch.version.cuda is None:
        raise BackendError("OpenMM-Torch needs PyTorch for CUDA, and this PyTorch has no CUDA")
    _check_versions()
    try:
        openmm = import_module("openmm")  # first, as its own plug-ins may load the real NVRTC
        openmmtorch = _load(lambda: import_module("openmmtorch"), openmm.OpenMMException)
        _load_plugins(openmm)
    except (ImportError, OSError) as error:
        raise BackendError(f"OpenMM-Torch cannot be loaded: {error}") from error
    return openmmtorch


def _load(load: Callable[[], Loaded], failure: type[Exception]) -> Loaded:
    """Load a library, again with `NVRTC` if it is what was missing."""
    try:
        return load()
    except (ImportError, OSError, failure) as error:
        if NVRTC not in str(error):
            raise
    provide_nvrtc()
    return load()


def _check_versions() -> None:
    """Raise `BackendError` for a PyTorch with which OpenMM-Torch would crash."""
    try:
        own = version("openmmtorch")
    except PackageNotFoundError:  # built from source, with this PyTorch
        return
    limit = TOO_NEW.get(own)
    if limit and tuple(int(part) for part in torch.__version__.split(".")[:2]) >= limit:
        raise BackendError(
            f"OpenMM-Torch {own} does not work with PyTorch {torch.__version__}: "
            "pip install 'torch<{}.{}'".format(*limit)
        )


def provide_nvrtc() -> None:
    """Load `NVRTC` from the system or its wheel, which then serves every library that needs it.

    Raises
    ------
    OSError
        If it is not installed.
    """
    wheels = Path(torch.__file__).parents[1] / "nvidia"
    for path in (NVRTC, *map(str, wheels.glob(f"*/lib/{NVRTC}"))):
        try:
            ctypes.CDLL(path)
        except OSError:
            continue
        return
    raise OSError(f"{NVRTC} is missing: pip install nvidia-cuda-nvrtc-cu12")


def _load_plugins(openmm: Any) -> None:
    """Load the plug-ins that OpenMM could not load because it was imported before PyTorch.

    The others are not loaded again, because that would register their kernels twice.
    """
    folder = Path(openmm.version.openmm_library_path, "plugins")
    if "OPENMM_PLUGIN_DIR" in os.environ or not folder.is_dir():
        folder = Path(openmm.Platform.getDefaultPluginsDirectory())
    for name in ("Reference", "CUDA"):
        _load_plugin(openmm, folder, name)


def _load_plugin(openmm: Any, folder: Path, name: str) -> None:
    path = str(folder / f"libOpenMMTorch{name}.so")
    try:
        platform = openmm.Platform.getPlatformByName(name)
        if not platform.supportsKernels(["CalcTorchForce"]):
            _load(lambda: openmm.Platform.loadPluginLibrary(path), openmm.OpenMMException)
    except openmm.OpenMMException as error:
        raise BackendError(
            f"OpenMM-Torch does not support OpenMM's platform {name} ({error}): install "
            "openmm-torch-cuda-13 or openmm-torch-cuda-12 for the CUDA of this PyTorch, e.g. "
            "pip install openmm-torch-cuda-13"
        ) from error
