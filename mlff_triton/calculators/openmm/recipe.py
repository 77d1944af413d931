"""Description of an OpenMM force as data: both routes are made from it, and files store it."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass
from pathlib import Path

import torch

from mlff_triton.calculators.openmm.molecules import WholeMolecules
from mlff_triton.checkpoints import lasting_name, load_model
from mlff_triton.engine.batch import IntArray
from mlff_triton.engine.engine import Engine
from mlff_triton.errors import InputError
from mlff_triton.model.prediction import Ensemble
from mlff_triton.model.tensornet import TensorNet
from mlff_triton.neighbors.box import FloatArray


@dataclass(frozen=True)
class Options:
    """Options of a force, the same as the arguments of `create_openmm_force`."""

    model: str | Path | TensorNet | Ensemble = "default"
    periodic: bool = False
    charge: int = 0
    device: str = "auto"
    dtype: str | torch.dtype = "float32"
    backend: str = "auto"
    route: str = "auto"
    skin: float | str = "auto"
    force_group: int = 0
    remove_references: bool = False


@dataclass(frozen=True)
class Recipe:
    """A model, its atoms, and the options of its engine.

    OpenMM crashes if unpickling a force raises. So files, which may have moved, and the class of a
    model, which is stored as bytes, are not accessed before the first step.

    Attributes
    ----------
    model : str or bytes
        Name of a shipped model, address of one on the Hub, absolute path of a checkpoint, or a
        pickled model.
    numbers : int64 [N]
        Atomic numbers.
    particles : int64 [N] or None
        Indices of the atoms in the System, or None for all.
    periodic : bool
        True if the model is periodic in the System's box.
    charge : int
        Total charge in elementary charges.
    device, dtype, backend, skin
        Same as for `mlff_triton.engine.engine.Engine`.
    bonds : int64 [B, 2] or None
        Bonds that make molecules in a periodic box whole, for a model that is not periodic.
    box : float64 [3, 3] or None
        The topology's box in nm, with these bonds.
    shift : float
        Energy in eV that is subtracted from every result.
    """

    model: str | bytes
    numbers: IntArray
    particles: IntArray | None = None
    periodic: bool = False
    charge: int = 0
    device: str = "auto"
    dtype: str = "float32"
    backend: str = "auto"
    skin: float | str = "auto"
    shift: float = 0.0
    bonds: IntArray | None = None
    box: FloatArray | None = None

    @property
    def uses_box(self) -> bool:
        """True if the System's box matters, even if only to make molecules of a part whole.

        A model of all atoms that is not periodic does not make its System periodic.
        """
        return self.periodic or (self.bonds is not None and self.particles is not None)

    def engine(self) -> Engine:
        """Make a new engine for the model."""
        model = load_lasting(self.model)
        return Engine(model, self.device, self.dtype, self.backend, skin=self.skin)

    def molecules(self) -> WholeMolecules | None:
        """Return the object that makes molecules whole, or None if nothing splits them."""
        if self.bonds is None:
            return None
        return WholeMolecules(self.bonds, len(self.numbers), gathers=self.particles is not None)


def lasting_model(model: str | Path | TensorNet | Ensemble) -> str | bytes:
    """Return a model in a form that means the same in other processes."""
    if isinstance(model, (TensorNet, Ensemble)):
        return pickle.dumps(copy.deepcopy(model).cpu())
    if not isinstance(model, (str, Path)):
        raise InputError(f"model must be a name, a path or a model of this package, not {model!r}")
    return lasting_name(model)


def load_lasting(model: str | bytes) -> TensorNet | Ensemble:
    """Load what `lasting_model` returned, on the CPU, with the errors of `load_model`."""
    if isinstance(model, str):
        return load_model(model)
    loaded = pickle.loads(model)  # noqa: S301 - from a pickle of OpenMM's, or this process
    assert isinstance(loaded, (TensorNet, Ensemble))
    return loaded
