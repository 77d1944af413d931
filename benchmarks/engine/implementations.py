"""Our implementations of a step: the engine, and the exact module, which is also the truth."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.systems.systems import System
from mlff_triton.model.config import TensorNet2Config
from mlff_triton.model.prediction import Prediction, predict
from mlff_triton.model.tensornet import TensorNet
from mlff_triton.testing import tolerance

# Fast paths of ours may be this far from the truth. Peers are measured if they come close.
OUR_TOLERANCE = tolerance(1, "float32")
PEER_TOLERANCE = 10 * OUR_TOLERANCE


@dataclass(frozen=True)
class Outcome:
    """Results of a step in eV and Å, on any device and in any precision.

    Attributes
    ----------
    energy : [B]
        Energy of each system.
    forces : [N, 3]
        Force on each atom.
    virial : [B, 3, 3] or None
        ``dE/dstrain``; None if it was not computed.
    """

    energy: Tensor
    forces: Tensor
    virial: Tensor | None = None


@dataclass(frozen=True)
class Prepared:
    """A step that is ready to run repeatedly.

    Attributes
    ----------
    step : callable
        The call that is timed. It may return before the device is done.
    read : callable
        Convert the return value of ``step`` to an `Outcome`.
    count : int
        Number of steps per call of ``step``; the reported time is their mean.
    """

    step: Callable[[], Any]
    read: Callable[[Any], Outcome]
    count: int = 1


@dataclass(frozen=True)
class Implementation:
    """One method of computing a step.

    Attributes
    ----------
    name : str
        Name in the results.
    prepare : callable
        Return a `Prepared` step of a model, system and device; imports what the method needs.
    max_atoms : int
        Size of the largest system to try.
    tolerance : float
        Largest relative error of forces that passes.
    needs_self_loops : bool
        If True, only TorchMD-NET's kind of model is supported, without our nuclear repulsion and
        without particle-mesh Ewald.
    needs_gpu : bool
        If True, only CUDA devices are supported.
    wall : bool
        If True, time with the host's clock rather than with events on the GPU.
    gated : bool
        If False, there are no results to check.
    """

    name: str
    prepare: Callable[[TensorNet, System, torch.device], Prepared]
    max_atoms: int = 1_000_000
    tolerance: float = OUR_TOLERANCE
    needs_self_loops: bool = False
    needs_gpu: bool = False
    wall: bool = False
    gated: bool = True

    def refusal(self, model: TensorNet, n_atoms: int, device: torch.device) -> str | None:
        """Return why this case is not supported, or None if it is."""
        if n_atoms > self.max_atoms:
            return f"more than {self.max_atoms} atoms"
        config = model.config
        if self.needs_self_loops and (config.zbl is not None or not config.self_loops):
            return "not a model of TorchMD-NET"
        has_mesh = isinstance(config, TensorNet2Config) and config.coulomb_method == "pme"
        if self.needs_self_loops and has_mesh:
            return "TorchMD-NET has no particle-mesh Ewald"
        if self.needs_gpu and device.type != "cuda":
            return "no GPU"
        return None


def exact(
    model: TensorNet, system: System, device: torch.device, dtype: torch.dtype = torch.float32
) -> Prepared:
    """Prepare the plain module; its neighbor list is built beforehand and not timed."""
    module = copy.deepcopy(model).to(device, dtype).requires_grad_(False)
    graph = system.graph(model.cutoff).to(device)
    numbers, positions, cells, batch = tensors(system, device)

    def step() -> Prediction:
        return predict(module, numbers, positions, graph, cell=cells, batch=batch)

    return Prepared(step, of_prediction)


def engine(model: TensorNet, system: System, device: torch.device) -> Prepared:
    """Prepare a whole step of the engine, from positions to energies, forces and virials."""
    from mlff_triton.engine.engine import Engine

    ours = Engine(model, device=device)
    numbers, positions, cells, batch = tensors(system, device)
    options = {"cell": cells, "pbc": cells is not None, "batch": batch}
    if device.type == "cuda":
        step = ours.prepare(numbers, positions, **options)
    else:
        step = partial(ours.compute, numbers, positions, **options)
    return Prepared(step, of_prediction)


def tensors(system: System, device: torch.device) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """Return numbers, positions (float64), cells and batch of a system on a device."""
    cells = None if system.cells is None else torch.from_numpy(system.cells).to(device)
    return (
        torch.from_numpy(system.numbers).to(device),
        torch.from_numpy(system.positions).to(device),
        cells,
        torch.from_numpy(system.batch).to(device),
    )


def of_prediction(prediction: Prediction) -> Outcome:
    """Convert the result of our own implementations."""
    return Outcome(prediction.energy, prediction.forces, prediction.virial)


OURS: tuple[Implementation, ...] = (
    Implementation("engine", engine),
    Implementation("exact", exact, max_atoms=65536, tolerance=PEER_TOLERANCE),
)
