"""What a force of OpenMM computes, as data: both routes are made from it, and files hold it."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass
from pathlib import Path

from mlff_triton.checkpoints import load_model, resolve_path, shipped_models
from mlff_triton.engine.batch import IntArray
from mlff_triton.engine.engine import Engine
from mlff_triton.errors import InputError
from mlff_triton.model.prediction import Ensemble
from mlff_triton.model.tensornet import TensorNet


@dataclass(frozen=True)
class Options:
    """How a force is asked for; as the arguments of `create_openmm_force`."""

    model: str | Path | TensorNet | Ensemble = "default"
    periodic: bool = False
    charge: int = 0
    device: str = "auto"
    dtype: str = "float32"
    backend: str = "auto"
    route: str = "auto"
    skin: float = 0.5
    force_group: int = 0
    remove_references: bool = False


@dataclass(frozen=True)
class Recipe:
    """A model, the atoms that it is for, and how it is run.

    OpenMM crashes if unpickling a force raises, so nothing here is looked up before the first step:
    not a file that may have moved, nor the class of a model, which is kept as bytes.

    Attributes
    ----------
    model : str or bytes
        Name of a shipped model, absolute path of a checkpoint, or a pickled model.
    numbers : int64 [N]
        Atomic numbers.
    particles : int64 [N] or None
        Indices of the atoms in the System, or None for all.
    periodic : bool
        Whether the System's box is the model's.
    charge : int
        Total charge in elementary charges.
    device, dtype, backend, skin
        As for `mlff_triton.engine.engine.Engine`.
    shift : float
        Taken from every energy, eV.
    """

    model: str | bytes
    numbers: IntArray
    particles: IntArray | None = None
    periodic: bool = False
    charge: int = 0
    device: str = "auto"
    dtype: str = "float32"
    backend: str = "auto"
    skin: float = 0.5
    shift: float = 0.0

    def engine(self) -> Engine:
        """A new engine for the model."""
        model = load_lasting(self.model)
        return Engine(model, self.device, self.dtype, self.backend, skin=self.skin)


def lasting_model(model: str | Path | TensorNet | Ensemble) -> str | bytes:
    """A model as another process finds it: a relative path or "default" may mean another there."""
    if isinstance(model, (TensorNet, Ensemble)):
        return pickle.dumps(copy.deepcopy(model).cpu())
    if not isinstance(model, (str, Path)):
        raise InputError(f"model must be a name, a path or a model of this package, not {model!r}")
    path = resolve_path(model)
    names = {shipped: name for name, shipped in shipped_models().items()}
    return names.get(path) or str(path.resolve())


def load_lasting(model: str | bytes) -> TensorNet | Ensemble:
    """What `lasting_model` has kept, on the CPU; errors as for `load_model`."""
    if isinstance(model, str):
        return load_model(model)
    loaded = pickle.loads(model)  # noqa: S301 - it came in a pickle of OpenMM's, or from here
    assert isinstance(loaded, (TensorNet, Ensemble))
    return loaded
