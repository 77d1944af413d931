"""The inference engine: energies, forces and virials, as fast as the device allows."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from mlff_triton._common.devices import find_device, find_dtype
from mlff_triton.checkpoints import load_model
from mlff_triton.engine import dispatch
from mlff_triton.engine.batch import Batch, as_array, to_tensor
from mlff_triton.engine.host_steps import ExactSteps, HostSteps, ResidentStep, TorchSteps, Units
from mlff_triton.engine.parameters import Parameters
from mlff_triton.errors import BackendError, InputError
from mlff_triton.model.prediction import Ensemble, Prediction, check_neutral
from mlff_triton.model.tensornet import TensorNet

if TYPE_CHECKING:
    from mlff_triton.engine.device_steps import DeviceSteps

PRECISIONS = ("exact", "tf32")
ANGSTROM_EV = Units()


class Engine:
    """A model prepared for inference on one device.

    Parameters
    ----------
    model : TensorNet, Ensemble, path or str
        A loaded model (a private copy is made), a checkpoint, or a shipped name.
    device : str or torch.device
        ``"auto"`` (a GPU where there is one), ``"cpu"``, ``"cuda"``, ``"cuda:1"``...
    dtype : {"float32", "float64"}
        Precision of the network; energies, forces and virials add up in float64 either way.
    backend : str
        ``"auto"``, or one of `dispatch.BACKENDS`: ``"triton-graph"`` (fused kernels in
        a CUDA graph), ``"triton"`` (without the graph), ``"torch"`` (the same sequence over plain
        PyTorch) and ``"exact"`` (the module itself, without tables, by autograd).
    precision : {"exact", "tf32"}
        With "tf32", products of float32 matrices keep eleven bits: faster, and good to three
        digits only.
    skin : float
        Extra radius of the neighbor list in Å; larger means rarer, longer lists.

    Notes
    -----
    Two computations of the same input agree to the bit, except with ``"exact"`` on a GPU, which
    sums by atomics. Any thread may call; calls wait for one another.

    Raises
    ------
    InputError
        If an option is unknown.
    BackendError
        If the device or the backend asked for cannot serve the model: the message names one that
        can.

    Examples
    --------
    >>> engine = Engine("default", device="cpu")
    >>> prediction = engine.compute([8, 1, 1], [[0, 0, 0.1], [0, 0.8, -0.5], [0, -0.8, -0.5]])
    >>> prediction.forces.shape
    torch.Size([3, 3])
    """

    def __init__(
        self,
        model: TensorNet | Ensemble | str | Path = "default",
        device: str | torch.device = "auto",
        dtype: str = "float32",
        backend: str = "auto",
        precision: str = "exact",
        skin: float = 0.5,
    ) -> None:
        if precision not in PRECISIONS:
            raise InputError(f"precision={precision!r}: use one of {', '.join(PRECISIONS)}")
        loaded = load_model(model) if isinstance(model, (str, Path)) else copy.deepcopy(model)
        self.device = find_device(device)
        self.dtype = find_dtype(dtype)
        members = list(loaded.members) if isinstance(loaded, Ensemble) else [loaded]
        self.uses_charge = loaded.uses_charge
        self.cutoff = loaded.cutoff
        self.backend = dispatch.choose(backend, members, self.device, self.dtype)
        self._steps = [self._prepare(member, precision, skin) for member in members]
        self._lock = threading.RLock()

    def _prepare(
        self, model: torch.nn.Module, precision: str, skin: float
    ) -> ExactSteps | TorchSteps | DeviceSteps:
        assert isinstance(model, TensorNet)
        if self.backend == "exact":
            return ExactSteps(model, self.device, self.dtype, skin)
        parameters = Parameters.of(model, self.device, self.dtype, tf32=precision == "tf32")
        common = (parameters, model.cutoff, self.device, self.dtype, skin)
        if self.backend == "torch":
            return TorchSteps(*common)
        from mlff_triton.engine.device_steps import (
            DeviceSteps,  # and so Triton, which need not be there
        )

        return DeviceSteps(*common, graphs=self.backend == "triton-graph")

    @property
    def n_builds(self) -> int:
        """How often neighbor lists have been built."""
        return sum(steps.n_builds for steps in self._steps)

    def compute(
        self,
        numbers: ArrayLike,
        positions: ArrayLike,
        cell: ArrayLike | None = None,
        pbc: ArrayLike = False,
        batch: ArrayLike | None = None,
        charge: ArrayLike | None = None,
    ) -> Prediction:
        """Energies, forces and virials of one or several systems.

        Parameters
        ----------
        numbers : int [N]
            Atomic numbers.
        positions : float [N, 3]
            Å; arrays or tensors on any device.
        cell : float [3, 3] or [B, 3, 3], optional
            Lattice vectors (rows) in Å, of all systems or of each.
        pbc : bool, bool [3] or bool [B, 3]
            Periodic directions, likewise.
        batch : int [N], optional
            System of each atom, ascending from 0 without gaps; one system by default.
        charge : int or int [B], optional
            Total charge in elementary charges; 0 by default.

        Returns
        -------
        Prediction
            New tensors on the engine's device.

        Raises
        ------
        InputError
            If a number is not finite, shapes disagree, a charge is not whole or the model was made
            for neutral systems, or a cell is absurdly small.
        UnknownElementError
            If the model was not made for an element.
        OverlappingAtomsError
            If two atoms coincide.
        BackendError
            If the GPU's memory is too small; the message says what is needed.
        """
        prediction = self.evaluate(Batch.of(numbers, positions, cell, pbc, batch, charge))
        return prediction.map(lambda tensor: tensor.to(self.device))

    def evaluate(self, batch: Batch) -> Prediction:
        """As `compute`, of systems that have been checked; results are on the CPU."""
        check_neutral(self.uses_charge, batch.charge)
        with self._lock:
            predictions = [steps.evaluate(batch) for steps in self._steps]
        if len(predictions) == 1:
            return predictions[0]
        columns = zip(*(vars(p).values() for p in predictions), strict=True)
        return Prediction(*(torch.stack(tensors).mean(0) for tensors in columns))

    def prepare(
        self,
        numbers: ArrayLike,
        positions: ArrayLike,
        cell: ArrayLike | None = None,
        pbc: ArrayLike = False,
        batch: ArrayLike | None = None,
        charge: ArrayLike | None = None,
    ) -> Callable[[], Prediction]:
        """Make a step of fixed systems ready to be run again and again, for measurements.

        Parameters
        ----------
        numbers, positions, cell, pbc, batch, charge
            As for `compute`.

        Returns
        -------
        callable
            Queues one whole step on the current stream, and returns a `Prediction` that holds once
            the GPU is done, until the next step.

        Raises
        ------
        BackendError
            If the engine does not run on a GPU, or has several members.
        """
        steps = self._steps[0]
        if len(self._steps) > 1 or isinstance(steps, HostSteps):
            raise BackendError("only single models on a GPU can be prepared: use compute")
        with self._lock:
            return steps.prepare(Batch.of(numbers, positions, cell, pbc, batch, charge))

    def resident(
        self,
        numbers: ArrayLike,
        cell: ArrayLike | None = None,
        pbc: ArrayLike = False,
        charge: int = 0,
        units: Units = ANGSTROM_EV,
    ) -> ResidentSystem:
        """Make one system ready for programs that have its positions on the engine's device.

        Parameters
        ----------
        numbers, cell, pbc, charge
            As for `compute`; the cell may change at every step.
        units : Units
            Of what the steps take and give; Å and eV by default.

        Returns
        -------
        ResidentSystem
            Its ``step`` takes and gives tensors on the engine's device. It has buffers, and on a
            GPU a graph, of its own, for as long as it lives.

        Raises
        ------
        InputError
            If the system cannot be computed.
        UnknownElementError
            If the model was not made for an element.
        """
        atoms = as_array(numbers)
        batch = Batch.of(atoms, np.zeros((atoms.size, 3)), cell, pbc, charge=charge)
        check_neutral(self.uses_charge, batch.charge)
        for steps in self._steps:
            model = steps.model if isinstance(steps, ExactSteps) else steps.parameters
            model.species(to_tensor(batch.numbers, self.device))
        with self._lock:
            members = [steps.resident(batch, units) for steps in self._steps]
        return ResidentSystem(len(batch.numbers), members, self._lock)


@dataclass(frozen=True)
class ResidentSystem:
    """A system whose positions and forces stay on the engine's device; see `Engine.resident`.

    Attributes
    ----------
    n_atoms : int
        Number of atoms N.
    members : list of ResidentStep
        A step of each model.
    lock : RLock
        The engine's.

    Examples
    --------
    >>> system = Engine("default", device="cpu").resident([8, 1, 1])
    >>> positions = torch.tensor([[0, 0, 0.1], [0, 0.8, -0.5], [0, -0.8, -0.5]])
    >>> energy, forces = system.step(positions)
    >>> forces.shape
    torch.Size([3, 3])
    """

    n_atoms: int
    members: list[ResidentStep]
    lock: threading.RLock

    def step(self, positions: Tensor, cell: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Energy and forces where the atoms are now, from any thread, in the system's units.

        Parameters
        ----------
        positions : [N, 3]
            Of any floating-point dtype. Tensors of another device than the engine's do, too, but
            have to be copied.
        cell : [3, 3], optional
            Lattice vectors (rows), likewise; those of the step before by default.

        Returns
        -------
        energy : float64 []
            On the CPU, where it is known as soon as the step is over.
        forces : [N, 3]
            On the engine's device, of the positions' dtype; a new tensor.

        Raises
        ------
        InputError
            If a shape is wrong, a number is not finite, or the cell is not one.
        OverlappingAtomsError
            If two atoms coincide.
        BackendError
            If the GPU's memory is too small; the message says what is needed.
        """
        if positions.shape != (self.n_atoms, 3):
            raise InputError(
                f"{self.n_atoms} atoms need positions [{self.n_atoms}, 3], not "
                f"{list(positions.shape)}"
            )
        if cell is not None and cell.shape != (3, 3):
            raise InputError(f"the cell must have shape [3, 3], not {list(cell.shape)}")
        with self.lock:
            results = [member(positions, cell) for member in self.members]
        if len(results) == 1:
            return results[0]
        energies, forces = zip(*results, strict=True)
        return torch.stack(energies).mean(0), torch.stack(forces).mean(0)
