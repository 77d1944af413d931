"""Steps with neighbor lists from the CPU: the exact module, and the engine over plain PyTorch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mlff_triton.engine.batch import Batch, as_array, to_tensor
from mlff_triton.engine.parameters import Parameters
from mlff_triton.engine.step import Systems, step
from mlff_triton.kernels.tensornet.reference import operators as reference
from mlff_triton.kernels.types.edges import Edges
from mlff_triton.model.prediction import Prediction, predict
from mlff_triton.model.tensornet import TensorNet
from mlff_triton.neighbors.box import Box
from mlff_triton.neighbors.graph import Graph, concatenate
from mlff_triton.neighbors.neighbor_list import check_positions, neighbor_list
from mlff_triton.neighbors.verlet_list import VerletList

ResidentStep = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor]]
"""Positions [N, 3] and the cell [3, 3] of a system, or None if it has not changed -> its energy,
float64 [] on the CPU, and forces [N, 3] on the device that computes, of the positions' dtype."""


class Units(NamedTuple):
    """What the numbers of a program are in.

    Attributes
    ----------
    length : float
        Its unit of length in Å.
    energy : float
        Its unit of energy in eV.
    """

    length: float = 1.0
    energy: float = 1.0


class HostSteps(ABC):
    """What steps with lists from the CPU share: that of a single system is kept while it holds."""

    def __init__(self, cutoff: float, skin: float, device: torch.device) -> None:
        self.device = device
        self._list = VerletList(cutoff, skin)

    @abstractmethod
    def evaluate(self, batch: Batch) -> Prediction:
        """Energies, forces and virials of a batch, on the CPU."""

    def resident(self, batch: Batch, units: Units) -> ResidentStep:
        """A function for the steps of one system, wherever its atoms go; by way of the CPU."""

        def step(positions: Tensor, cell: Tensor | None) -> tuple[Tensor, Tensor]:
            nonlocal batch
            if cell is not None:
                box = Box.of(np.multiply(as_array(cell), units.length), batch.boxes[0].pbc)
                batch = replace(batch, boxes=(box,))
            points = units.length * check_positions(as_array(positions))
            prediction = self.evaluate(replace(batch, positions=points))
            forces = prediction.forces.double() * (units.length / units.energy)
            return prediction.energy[0] / units.energy, forces.to(self.device, positions.dtype)

        return step

    @property
    def n_builds(self) -> int:
        """How often a kept list was built."""
        return self._list.n_builds

    def _graph(self, batch: Batch) -> Graph:
        """The neighbor list of a batch, on the CPU."""
        if len(batch.boxes) == 1:
            box = batch.boxes[0]
            return self._list.update(batch.positions, box.cell, box.pbc)
        parts = np.split(batch.positions, batch.system_ptr[1:-1])
        return concatenate(
            [
                neighbor_list(points, self._list.cutoff, box.cell, box.pbc)
                for points, box in zip(parts, batch.boxes, strict=True)
            ]
        )


class ExactSteps(HostSteps):
    """The exact module and autograd."""

    def __init__(
        self, model: TensorNet, device: torch.device, dtype: torch.dtype, skin: float
    ) -> None:
        super().__init__(model.cutoff, skin, device)
        self.model = model.eval().requires_grad_(False).to(device, dtype)

    def evaluate(self, batch: Batch) -> Prediction:
        """Energies, forces and virials of a batch, on the CPU."""
        graph = self._graph(batch).to(self.device)
        cells = np.stack([box.cell for box in batch.boxes])
        prediction = predict(
            self.model,
            to_tensor(batch.numbers, self.device),
            to_tensor(batch.positions, self.device),
            graph,
            cell=to_tensor(cells, self.device),
            batch=to_tensor(batch.system, self.device),
            charge=to_tensor(batch.charge, self.device),
        )
        return prediction.map(Tensor.cpu)


class TorchSteps(HostSteps):
    """The engine's own sequence over plain PyTorch operators, on any device."""

    def __init__(
        self,
        parameters: Parameters,
        cutoff: float,
        device: torch.device,
        dtype: torch.dtype,
        skin: float,
    ) -> None:
        super().__init__(cutoff, skin, device)
        self.parameters = parameters
        self.dtype = dtype

    def evaluate(self, batch: Batch) -> Prediction:
        """Energies, forces and virials of a batch, on the CPU."""
        p, device = self.parameters, self.device
        graph = self._graph(batch).to(device)
        system = to_tensor(batch.system, device)
        cells = to_tensor(np.stack([box.cell for box in batch.boxes]), device)
        vectors = graph.vectors(to_tensor(batch.positions, device), cells, system)
        edges = Edges.of_graph(graph.row_ptr, graph.senders, graph.reverse, vectors, p.tables.knots)
        n_atoms = len(batch.numbers)
        systems = Systems.of(
            p,
            to_tensor(batch.numbers, device),
            to_tensor(batch.charge, device),
            to_tensor(batch.system_ptr, device),
            torch.arange(n_atoms, dtype=torch.int32, device=device),
        )
        status = torch.zeros(n_atoms, dtype=torch.int32, device=device)
        prediction = step(reference, p, systems, edges.to(self.dtype), status).prediction
        return prediction.map(Tensor.cpu)
