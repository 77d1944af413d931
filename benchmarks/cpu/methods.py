"""Methods of computing forces on a CPU, as functions of positions: our engine, and TorchMD-NET."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.engine import peers
from benchmarks.engine.implementations import Outcome
from benchmarks.systems.systems import System
from mlff_triton.engine.batch import Batch
from mlff_triton.engine.engine import Engine
from mlff_triton.model.tensornet import TensorNet

CPU = torch.device("cpu")
ROOM = 1.1  # capacity of neighbor lists of fixed length over the number of pairs at the start

Evaluate = Callable[[NDArray[np.float64]], Outcome]
"""Compute the forces at positions, float64 [N, 3] in Å."""


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
        peers.select_operators(warp=warp)  # which other models of this process share
        with torch.no_grad():
            inputs["pos"].copy_(torch.from_numpy(positions))
        energy, forces = step()
        return Outcome(energy.detach()[:, 0].double() + references, forces.detach())

    return evaluate
