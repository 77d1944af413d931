"""Ours: the engine, and the exact module, which is also the truth."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.systems.systems import System
from mlff_triton.model.prediction import Prediction, predict
from mlff_triton.model.tensornet import TensorNet
from mlff_triton.testing import tolerance

# DESIGN: a fast path is at most this far from the truth; others are measured if they are close.
OUR_TOLERANCE = tolerance(1, "float32")
PEER_TOLERANCE = 10 * OUR_TOLERANCE


@dataclass(frozen=True)
class Outcome:
    """Results of a step in eV and Å, wherever and in whatever precision.

    Attributes
    ----------
    energy : [B]
        Of each system.
    forces : [N, 3]
        Of each atom.
    virial : [B, 3, 3] or None
        ``dE/dstrain``; None if it was not computed.
    """

    energy: Tensor
    forces: Tensor
    virial: Tensor | None = None


@dataclass(frozen=True)
class Prepared:
    """A step that is ready to run again and again.

    Attributes
    ----------
    step : callable
        What is timed; may return before the device is done.
    read : callable
        Makes an `Outcome` of what ``step`` returned.
    count : int
        Steps that ``step`` takes: what is reported is their mean.
    """

    step: Callable[[], Any]
    read: Callable[[Any], Outcome]
    count: int = 1


@dataclass(frozen=True)
class Implementation:
    """One way to compute a step.

    Attributes
    ----------
    name : str
        As in the results.
    prepare : callable
        Model, system and device to a `Prepared` step; whatever it needs is imported there.
    max_atoms : int
        Larger systems are not tried.
    tolerance : float
        Largest relative error of forces.
    needs_self_loops, needs_gpu : bool
        Whether it serves TorchMD-NET's kind of model only, and only on a GPU.
    wall : bool
        Whether the host's clock is what counts.
    gated : bool
        Whether there are results to be right.
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
        """Why this case is none for this implementation; None if it is one."""
        if n_atoms > self.max_atoms:
            return f"more than {self.max_atoms} atoms"
        if self.needs_self_loops and not model.config.self_loops:
            return "not a model of TorchMD-NET"
        if self.needs_gpu and device.type != "cuda":
            return "no GPU"
        return None


def exact(
    model: TensorNet, system: System, device: torch.device, dtype: torch.dtype = torch.float32
) -> Prepared:
    """The plain module, its neighbor list ready beforehand and not timed."""
    mine = copy.deepcopy(model).to(device, dtype).requires_grad_(False)
    graph = system.graph(model.cutoff).to(device)
    numbers, positions, cells, batch = tensors(system, device)

    def step() -> Prediction:
        return predict(mine, numbers, positions, graph, cell=cells, batch=batch)

    return Prepared(step, of_prediction)


def engine(model: TensorNet, system: System, device: torch.device) -> Prepared:
    """The engine: a whole step, from positions to energies, forces and virials."""
    from mlff_triton.engine.engine import Engine

    mine = Engine(model, device=device)
    numbers, positions, cells, batch = tensors(system, device)
    step = mine.prepare(numbers, positions, cell=cells, pbc=cells is not None, batch=batch)
    return Prepared(step, of_prediction)


def tensors(system: System, device: torch.device) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """Numbers, positions (float64), cells and batch of a system on a device."""
    cells = None if system.cells is None else torch.from_numpy(system.cells).to(device)
    return (
        torch.from_numpy(system.numbers).to(device),
        torch.from_numpy(system.positions).to(device),
        cells,
        torch.from_numpy(system.batch).to(device),
    )


def of_prediction(prediction: Prediction) -> Outcome:
    """What our own implementations return, as an outcome."""
    return Outcome(prediction.energy, prediction.forces, prediction.virial)


OURS: tuple[Implementation, ...] = (
    Implementation("engine", engine),
    Implementation("exact", exact, max_atoms=65536, tolerance=PEER_TOLERANCE),
)
