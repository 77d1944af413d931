"""Steps with neighbor lists from the CPU: the exact module, and the engine over plain PyTorch."""

from __future__ import annotations

import numpy as np
import torch

from mlff_triton.batch import Batch, to_tensor
from mlff_triton.graph import Graph, concatenate
from mlff_triton.kernels.reference import step as reference
from mlff_triton.kernels.reference.edges import cast, edges_of_graph
from mlff_triton.neighbors import VerletList, neighbor_list
from mlff_triton.parameters import Parameters
from mlff_triton.prediction import Prediction, predict
from mlff_triton.step import Systems, step
from mlff_triton.tensornet import TensorNet


class GraphSource:
    """Neighbor lists of successive batches; that of a single system is kept while it holds."""

    def __init__(self, cutoff: float, skin: float) -> None:
        self._list = VerletList(cutoff, skin)

    @property
    def n_builds(self) -> int:
        """How often a kept list was built."""
        return self._list.n_builds

    def graph(self, batch: Batch) -> Graph:
        """The neighbor list of a batch, on the CPU."""
        if len(batch.boxes) == 1:
            box = batch.boxes[0]
            return self._list.update(batch.positions, box.cell, box.pbc)
        parts = np.split(batch.positions, np.cumsum(batch.counts)[:-1])
        return concatenate(
            [
                neighbor_list(points, self._list.cutoff, box.cell, box.pbc)
                for points, box in zip(parts, batch.boxes, strict=True)
            ]
        )


class ExactSteps:
    """The exact module and autograd."""

    def __init__(
        self, model: TensorNet, device: torch.device, dtype: torch.dtype, skin: float
    ) -> None:
        self.model = model.eval().requires_grad_(False).to(device, dtype)
        self.device = device
        self._source = GraphSource(model.cutoff, skin)

    @property
    def n_builds(self) -> int:
        """How often a kept neighbor list was built."""
        return self._source.n_builds

    def evaluate(self, batch: Batch) -> Prediction:
        """Energies, forces and virials of a batch, on the CPU."""
        graph = self._source.graph(batch).to(self.device)
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
        return Prediction(*(tensor.cpu() for tensor in vars(prediction).values()))


class TorchSteps:
    """The engine's own sequence over plain PyTorch operators, on any device."""

    def __init__(
        self,
        parameters: Parameters,
        cutoff: float,
        device: torch.device,
        dtype: torch.dtype,
        skin: float,
    ) -> None:
        self.parameters = parameters
        self.device, self.dtype = device, dtype
        self._source = GraphSource(cutoff, skin)

    @property
    def n_builds(self) -> int:
        """How often a kept neighbor list was built."""
        return self._source.n_builds

    def evaluate(self, batch: Batch) -> Prediction:
        """Energies, forces and virials of a batch, on the CPU."""
        p, device = self.parameters, self.device
        graph = self._source.graph(batch).to(device)
        system = to_tensor(batch.system, device)
        cells = to_tensor(np.stack([box.cell for box in batch.boxes]), device)
        vectors = graph.vectors(to_tensor(batch.positions, device), cells, system)
        edges = edges_of_graph(graph.row_ptr, graph.senders, graph.reverse, vectors, p.tables.knots)
        n_atoms = len(batch.numbers)
        systems = Systems.of(
            p,
            to_tensor(batch.numbers, device),
            to_tensor(batch.charge, device),
            to_tensor(system_pointer(batch), device),
            torch.arange(n_atoms, dtype=torch.int32, device=device),
        )
        status = torch.zeros(n_atoms, dtype=torch.int32, device=device)
        prediction = step(reference, p, systems, cast(edges, self.dtype), status).prediction
        return Prediction(*(tensor.cpu() for tensor in vars(prediction).values()))


def system_pointer(batch: Batch) -> np.ndarray:
    """First atom of each system, and the number of all, int32 [B + 1]."""
    return np.concatenate([[0], np.cumsum(batch.counts)]).astype(np.int32)
