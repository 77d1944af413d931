"""TensorNet as a TorchForce of OpenMM-Torch: on CUDA, positions and forces stay on the GPU.

A TorchForce holds a TorchScript module, which OpenMM copies, writes to files and calls from C++.
Ours calls one registered operator. It carries a handle, a number by which this process finds the
engine, and a recipe, from which any other process makes it again.
"""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import warnings
from functools import cache, lru_cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from mlff_triton.calculators.openmm.recipe import Recipe
from mlff_triton.calculators.openmm.stub_library import load_stub
from mlff_triton.engine.steps import Units
from mlff_triton.errors import BackendError, InputError
from mlff_triton.units import EV_TO_KJ_PER_MOL, NM

if TYPE_CHECKING:
    import openmm

OPENMM_UNITS = Units(length=NM, energy=1 / EV_TO_KJ_PER_MOL)
KEPT_SYSTEMS = 8
NVRTC = "libnvrtc.so.12"
TOO_NEW = {"1.5": (2, 13)}
"""For a version of OpenMM-Torch, the first PyTorch whose tensors its wheels cannot handle."""

_recipes: dict[int, Recipe] = {}


def create_torch_force(recipe: Recipe) -> openmm.Force:
    """Make a TorchForce.

    OpenMM takes forces over and copies them where Python does not see it, so their end is not
    known. Kept are the engines of the last `KEPT_SYSTEMS` forces that were used; that of an older
    one is made anew when it is used again.

    Parameters
    ----------
    recipe : Recipe
        What to compute.

    Returns
    -------
    openmmtorch.TorchForce
        For any platform that OpenMM-Torch serves.

    Notes
    -----
    OpenMM-Torch 1.5 writes a System with a TorchForce, whichever, but crashes when it reads one
    with PyTorch 2.11: Systems that are to be read again need route="python".

    OpenMM-Torch hands on positions as OpenMM's CUDA platform has them, in single precision unless
    that is in double, and with molecules wrapped into the box. A model that is not periodic must
    not be used for atoms of a periodic System which nothing else holds together as a molecule.

    Raises
    ------
    BackendError
        If OpenMM-Torch does not work here, or the device or the backend cannot serve the model.
    """
    force = import_openmmtorch().TorchForce(create_module(recipe))
    force.setOutputsForces(True)
    force.setUsesPeriodicBoundaryConditions(recipe.periodic)
    return force


def create_module(recipe: Recipe) -> torch.jit.ScriptModule:
    """The module of a TorchForce: positions [M, 3] and box [3, 3] -> energy [] and forces [M, 3].

    All are in OpenMM's units, nm, kJ/mol and kJ/mol/nm, and forces have the dtype of positions,
    since OpenMM-Torch frees those that it has to convert before it uses them.
    """
    handle = secrets.randbits(62)  # not counted: another process may have written the file
    _recipes[handle] = recipe
    _system_of(handle)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.jit.script`", DeprecationWarning)
        module: torch.jit.ScriptModule = torch.jit.script(_Call(handle, _encode(recipe)))
    return module


class OpenMMSystem:
    """One system as OpenMM has it: all its particles, in its units.

    Parameters
    ----------
    recipe : Recipe
        What to compute.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        engine = recipe.engine()
        any_box = np.eye(3) if recipe.periodic else None  # each step brings its own
        self.resident = engine.resident(
            recipe.numbers, any_box, recipe.periodic, recipe.charge, OPENMM_UNITS
        )
        self._particles: Tensor | None = None
        if recipe.particles is not None:
            self._particles = torch.from_numpy(recipe.particles)
            self._last_particle = int(recipe.particles.max())

    def step(self, positions: Tensor, box: Tensor | None) -> tuple[Tensor, Tensor]:
        """Energy and forces, as `create_module` has them."""
        self._check(len(positions))
        ours = positions
        if self._particles is not None:
            self._particles = self._particles.to(positions.device)
            ours = positions.index_select(0, self._particles)
        energy, forces = self.resident.step(ours, box if self.recipe.periodic else None)
        energy -= self.recipe.shift * EV_TO_KJ_PER_MOL
        forces = forces.to(positions.device)
        if self._particles is not None:
            forces = torch.zeros_like(positions).index_copy_(0, self._particles, forces)
        return energy, forces

    def _check(self, n_particles: int) -> None:
        needed = self._last_particle + 1 if self._particles is not None else self.resident.n_atoms
        if n_particles < needed or (self._particles is None and n_particles > needed):
            raise InputError(
                f"the System has {n_particles} particles, but the force was made for {needed}: "
                "make it from the System's own topology, or name the atoms by particles=[...]"
            )


def openmm_step(
    handle: int, recipe: Tensor, positions: Tensor, box: Tensor | None
) -> tuple[Tensor, Tensor]:
    """What the operator ``mlff_triton::openmm_step`` does, in whichever thread OpenMM calls it."""
    try:
        if handle not in _recipes:
            _recipes[handle] = _decode(recipe)
        return _system_of(handle).step(positions, box)
    except Exception as error:  # OpenMM hands on the message of an exception, but not its class
        line = str(error).partition("\n")[0]
        raise RuntimeError(f"mlff_triton: {type(error).__name__}: {line}") from error


_LIBRARY = torch.library.Library("mlff_triton", "FRAGMENT")
_LIBRARY.define(
    "openmm_step(int handle, Tensor recipe, Tensor positions, Tensor? box) -> (Tensor, Tensor)"
)
_LIBRARY.impl("openmm_step", openmm_step, "CompositeExplicitAutograd")


class _Call(nn.Module):
    """The operator, and what it is to be called with; written in what TorchScript understands."""

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
    """A recipe as bytes, which run nothing when they are read; a model in memory is left out."""
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
            "this TorchForce was made in another process, of a model that was in its memory: save "
            "the model and name the file, or use route='python', which writes models into files"
        )
    for name in ("numbers", "particles"):
        if fields[name] is not None:
            fields[name] = np.array(fields[name], dtype=np.int64)
    return Recipe(**fields)


def torch_route_obstacle() -> str | None:
    """Why there can be no TorchForce here and what to do, in one line; None if there can be."""
    try:
        import_openmmtorch()
    except BackendError as error:
        return str(error)
    return None


@cache
def import_openmmtorch() -> Any:
    """The module `openmmtorch`, with its plug-in for CUDA, in whichever order things were imported.

    Its libraries need PyTorch's, which have been loaded with PyTorch; and `NVRTC`, of which they
    use nothing, but which is not there with PyTorch for CUDA 13.

    Raises
    ------
    BackendError
        If something is missing; the message says what to do.
    """
    if find_spec("openmmtorch") is None:
        raise BackendError("OpenMM-Torch is missing: pip install 'openmmtorch[cuda13]'")
    if torch.version.cuda is None:
        raise BackendError("OpenMM-Torch needs a PyTorch for CUDA, and this one has none")
    _check_versions()
    try:
        openmm = import_module("openmm")  # first: its own plug-ins may bring the real NVRTC
        _provide_nvrtc()
        openmmtorch = import_module("openmmtorch")
    except (ImportError, OSError) as error:
        raise BackendError(f"OpenMM-Torch cannot be loaded: {error}") from error
    _load_plugins(openmm)
    return openmmtorch


def _check_versions() -> None:
    """Refuse a PyTorch with which OpenMM-Torch would crash."""
    try:
        own = version("openmmtorch")
    except PackageNotFoundError:  # built from source, and so for this PyTorch
        return
    limit = TOO_NEW.get(own)
    if limit and tuple(int(part) for part in torch.__version__.split(".")[:2]) >= limit:
        raise BackendError(
            f"OpenMM-Torch {own} does not work with PyTorch {torch.__version__}: "
            "pip install 'torch<{}.{}'".format(*limit)
        )


def _provide_nvrtc() -> None:
    """Load `NVRTC`: the one there is, or an empty one."""
    wheels = Path(torch.__file__).parents[1] / "nvidia"
    for path in (NVRTC, *map(str, wheels.glob(f"*/lib/{NVRTC}"))):
        try:
            ctypes.CDLL(path)
        except OSError:
            continue
        return
    load_stub(NVRTC)


def _load_plugins(openmm: Any) -> None:
    """Load the plug-ins that could not be, if OpenMM was imported before PyTorch.

    Those that could be are left alone, or they would register their kernels twice.
    """
    folder = Path(openmm.version.openmm_library_path, "plugins")
    if "OPENMM_PLUGIN_DIR" in os.environ or not folder.is_dir():
        folder = Path(openmm.Platform.getDefaultPluginsDirectory())
    for name in ("Reference", "CUDA"):
        _load_plugin(openmm, folder, name)


def _load_plugin(openmm: Any, folder: Path, name: str) -> None:
    try:
        platform = openmm.Platform.getPlatformByName(name)
        if not platform.supportsKernels(["CalcTorchForce"]):
            openmm.Platform.loadPluginLibrary(str(folder / f"libOpenMMTorch{name}.so"))
    except openmm.OpenMMException as error:
        raise BackendError(
            f"OpenMM-Torch does not serve OpenMM's platform {name} ({error}): "
            "pip install openmm-torch-cuda-13, or -12, whichever CUDA PyTorch is for"
        ) from error
