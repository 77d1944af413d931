"""Methods of computing forces on a CPU, each a function of positions: ours, and peers."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.engine import peers
from benchmarks.engine.implementations import OUR_TOLERANCE, PEER_TOLERANCE, Outcome
from benchmarks.systems.systems import System
from mlff_triton.engine.batch import Batch
from mlff_triton.engine.engine import Engine
from mlff_triton.model.tensornet import TensorNet

CPU = torch.device("cpu")
OURS = "cpu"  # the backend that all others are compared with
ROOM = 1.1  # capacity of neighbor lists of fixed length over the number of pairs at the start
COMPILERS = ("g++", "clang++", "cl")

Evaluate = Callable[[NDArray[np.float64]], Outcome]


@dataclass(frozen=True)
class Entrant:
    """One method of computing forces.

    Attributes
    ----------
    name : str
        Name in the results.
    prepare : callable
        Return a function of positions, float64 [N, 3] in Å, for a model and a system.
    tolerance : float
        Largest relative error of forces that passes.
    precision : str
        Precision of the network.
    is_peer : bool
        True for other packages.
    needs_compiler : bool
        If True, a C++ compiler is needed.
    """

    name: str
    prepare: Callable[[TensorNet, System], Evaluate]
    tolerance: float = PEER_TOLERANCE
    precision: str = "float32"
    is_peer: bool = False
    needs_compiler: bool = False

    def refusal(self, model: TensorNet) -> str | None:
        """Return why this model is not supported here, or None if it is."""
        if self.is_peer and not model.config.self_loops:
            return "not a model of TorchMD-NET"
        if self.needs_compiler and not any(map(shutil.which, COMPILERS)):
            return "no C++ compiler"
        return None


def engine_of(model: TensorNet, system: System, backend: str, dtype: str = "float32") -> Evaluate:
    """Prepare an engine, whose neighbor list is kept from step to step as in a simulation."""
    engine = Engine(model, CPU, dtype, backend)
    batch = Batch.of(system.numbers, system.positions, system.cell, system.cell is not None)

    def evaluate(positions: NDArray[np.float64]) -> Outcome:
        found = engine.evaluate(batch.with_positions(positions))
        return Outcome(found.energy, found.forces, found.virial)

    return evaluate


Runner = Callable[[nn.Module, dict[str, Any]], Callable[[], tuple[Tensor, Tensor]]]


def torchmd_net(
    model: TensorNet, system: System, run: Runner, *, warp: bool, compiled: bool
) -> Evaluate:
    """Prepare TorchMD-NET with the weights of a model."""
    theirs = peers.rebuild_for(
        system, model, warp=warp, static_shapes=compiled, derivative=not compiled, room=ROOM
    )
    inputs = peers.peer_inputs(system, CPU)
    references = peers.lone_atoms(model, system)
    step = run(theirs, inputs)

    def evaluate(positions: NDArray[np.float64]) -> Outcome:
        with torch.no_grad():
            inputs["pos"].copy_(torch.from_numpy(positions))
        energy, forces = step()
        return Outcome(energy.detach()[:, 0].double() + references, forces.detach())

    return evaluate


def _ours(name: str, backend: str, dtype: str = "float32") -> Entrant:
    tolerance = OUR_TOLERANCE if backend == OURS else PEER_TOLERANCE
    prepare = partial(engine_of, backend=backend, dtype=dtype)
    return Entrant(name, prepare, tolerance, dtype)


def _peer(name: str, run: Runner, *, warp: bool, compiled: bool = False) -> Entrant:
    prepare = partial(torchmd_net, run=run, warp=warp, compiled=compiled)
    return Entrant(f"torchmd-net-{name}", prepare, is_peer=True, needs_compiler=compiled)


ENTRANTS: dict[str, Entrant] = {
    entrant.name: entrant
    for entrant in (
        _ours(OURS, OURS),
        _ours("exact", "exact"),
        _ours("torch", "torch"),
        _ours("cpu-float64", OURS, "float64"),
        _ours("exact-float64", "exact", "float64"),
        _peer("torch", peers.eager, warp=False),
        _peer("warp", peers.eager, warp=True),
        _peer("torch-compile", peers.compiled, warp=False, compiled=True),
        _peer("warp-compile", peers.compiled, warp=True, compiled=True),
    )
}
