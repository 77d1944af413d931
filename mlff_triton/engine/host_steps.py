"""Steps with neighbor lists from the CPU: the exact module, and the engine over plain PyTorch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from mlff_triton.engine.batch import Batch, IntArray, as_array, to_tensor
from mlff_triton.engine.charged_step import Geometry, Operators, evaluate_charged_step
from mlff_triton.engine.host_part import ExactPart, SequencePart, within
from mlff_triton.engine.mesh import Mesh
from mlff_triton.engine.parameters import Parameters
from mlff_triton.engine.part import reach
from mlff_triton.engine.step import Systems, evaluate_step
from mlff_triton.engine.steps import CANNOT_PREPARE, ResidentStep, Steps, Units
from mlff_triton.errors import BackendError
from mlff_triton.kernels.types.edges import Edges
from mlff_triton.model.mesh_coulomb import slab_of
from mlff_triton.model.prediction import ExternalField, Potentials, Prediction, predict
from mlff_triton.model.tensornet import TensorNet
from mlff_triton.neighbors.graph import Graph, concatenate
from mlff_triton.neighbors.neighbor_list import neighbor_list
from mlff_triton.neighbors.verlet_list import VerletList


class HostSteps(Steps):
    """Steps that wait for the CPU.

    Parameters
    ----------
    device : torch.device
        Device that computes the network.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def prepare(self, batch: Batch) -> Callable[[], Prediction]:  # noqa: ARG002 (of all steps)
        """Raise `BackendError`, because these steps wait for the CPU."""
        raise BackendError(CANNOT_PREPARE)

    def resident(self, batch: Batch, units: Units) -> ResidentStep:
        """Return the step of one system, whose positions and forces are copied through the CPU."""

        def step(positions: Tensor, cell: Tensor | None) -> tuple[Tensor, Tensor]:
            nonlocal batch
            if cell is not None:
                batch = batch.with_box(np.multiply(as_array(cell), units.length))
            points = np.multiply(as_array(positions), units.length, dtype=np.float64)
            prediction = self.evaluate(batch.with_positions(points))
            forces = prediction.forces.double() * (units.length / units.energy)
            return prediction.energy[0] / units.energy, forces.to(self.device, positions.dtype)

        return step


class ListSteps(HostSteps):
    """Steps with neighbor lists from the CPU; the list of a single system is reused.

    Parameters
    ----------
    cutoff, skin : float
        Å.
    device : torch.device
        Device that computes the network.
    """

    def __init__(self, cutoff: float, skin: float, device: torch.device) -> None:
        super().__init__(device)
        self._list = VerletList(cutoff, skin)

    @property
    def n_builds(self) -> int:
        """Number of reusable neighbor lists built so far."""
        return self._list.n_builds

    def evaluate(self, batch: Batch) -> Prediction:
        """Compute energies, forces and virials of a batch; return them on the CPU."""
        return self._compute(batch)

    def evaluate_in_field(self, batch: Batch, field: ExternalField) -> Prediction:
        """Compute a batch whose charges are in a field; return the results on the CPU."""
        field.prepare()
        prediction = self._compute(batch, field)
        field.finish()
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        return prediction

    @abstractmethod
    def _compute(self, batch: Batch, field: Potentials | None = None) -> Prediction:
        """Compute a batch, with charges in a field if given; return the results on the CPU."""

    def _graph(self, batch: Batch) -> Graph:
        """Return the neighbor list of a batch, on the CPU."""
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


class ExactSteps(ListSteps):
    """Steps of the exact module, differentiated by autograd.

    Parameters
    ----------
    model : TensorNet
        The model; it is moved to the device.
    device : torch.device
        Device that computes the network.
    dtype : torch.dtype
        Precision of the network.
    skin : float
        Å.
    """

    def __init__(
        self, model: TensorNet, device: torch.device, dtype: torch.dtype, skin: float
    ) -> None:
        super().__init__(model.cutoff, skin, device)
        self.model = model.eval().requires_grad_(False).to(device, dtype)

    def check_species(self, numbers: IntArray) -> None:
        """Raise `UnknownElementError` unless the model knows all atomic numbers, int64 [N]."""
        self.model.species(to_tensor(numbers, self.device))

    @property
    def reach(self) -> float:
        """Distance in Å up to which atoms influence the energy of an atom."""
        return reach(self.model.config)

    def part(self, charge: float) -> ExactPart:
        """Return the steps of a part of a system with a total charge in elementary charges."""
        return ExactPart(self.model, self._list.skin, charge, self.device)

    def _compute(self, batch: Batch, field: Potentials | None = None) -> Prediction:
        for box in batch.boxes:
            self.model.check_box(box)
        graph = self._graph(batch).to(self.device)
        cells = np.stack([box.cell for box in batch.boxes])
        slab = slab_of(batch.boxes) if self.model.uses_mesh else None
        prediction = predict(
            self.model,
            to_tensor(batch.numbers, self.device),
            to_tensor(batch.positions, self.device),
            graph,
            cell=to_tensor(cells, self.device),
            batch=to_tensor(batch.system, self.device),
            charge=to_tensor(batch.charge, self.device),
            slab=slab,
            field=field,
        )
        return prediction.map(Tensor.cpu)


class SequenceSteps(ListSteps):
    """Steps of the engine over operators that need no neighbor list on a GPU.

    Parameters
    ----------
    operators : Operators
        Plain PyTorch, on any device.
    parameters : Parameters
        The model, on the device.
    cutoff : float
        Cutoff in Å.
    device : torch.device
        Device that computes the network.
    dtype : torch.dtype
        Precision of the network.
    skin : float
        Å.
    """

    def __init__(
        self,
        operators: Operators,
        parameters: Parameters,
        cutoff: float,
        device: torch.device,
        dtype: torch.dtype,
        skin: float,
    ) -> None:
        super().__init__(cutoff, skin, device)
        self.operators = operators
        self.parameters = parameters
        self.dtype = dtype
        self._mesh_choice = parameters.mesh_choice
        self._batch: Batch | None = None

    def check_species(self, numbers: IntArray) -> None:
        """Raise `UnknownElementError` unless the model knows all atomic numbers, int64 [N]."""
        self.parameters.species(to_tensor(numbers, self.device))

    @property
    def reach(self) -> float:
        """Distance in Å up to which atoms influence the energy of an atom."""
        return reach(self.parameters.config)

    @property
    def exchange_reach(self) -> float:
        """Distance in Å up to which parts with an exchange need ghosts."""
        return self.parameters.cutoff

    @property
    def tensor_reach(self) -> float:
        """Distance in Å up to which parts with an exchange need tensors of ghosts."""
        return self.parameters.network_cutoff

    def part(self, charge: float) -> SequencePart:
        """Return the steps of a part of a system with a total charge in elementary charges."""
        cutoff, skin = self._list.cutoff, self._list.skin
        given = cutoff, skin, charge, self.device
        return SequencePart(self.operators, self.parameters, *given, self.dtype)

    def _compute(self, batch: Batch, field: Potentials | None = None) -> Prediction:
        p, device = self.parameters, self.device
        for box in batch.boxes:
            p.check_box(box)
        graph = self._graph(batch).to(device)
        system, positions = (to_tensor(a, device) for a in (batch.system, batch.positions))
        cells = to_tensor(np.stack([box.cell for box in batch.boxes]), device)
        vectors = graph.vectors(positions, cells, system)
        n_atoms = len(batch.numbers)
        systems = Systems.of(
            p,
            to_tensor(batch.numbers, device),
            to_tensor(batch.charge, device),
            to_tensor(batch.system_ptr, device),
        )
        status = torch.zeros(n_atoms, dtype=torch.int32, device=device)
        if p.charges is None:
            outputs = evaluate_step(
                self.operators.network, p, systems, self._edges(graph, vectors), status
            )
        else:
            near = self._edges(*within(p.charges.network_cutoff, graph, vectors))
            far = self._edges(graph, vectors) if p.charges.is_truncated else None
            geometry = Geometry(positions, near, far, self._mesh(batch, cells))
            outputs = evaluate_charged_step(self.operators, p, systems, geometry, status, field)
        return outputs.prediction.map(Tensor.cpu)

    def _mesh(self, batch: Batch, cells: Tensor) -> Mesh | None:
        """Return the mesh of a batch if the Coulomb energy uses particle-mesh Ewald."""
        if self._mesh_choice is None:
            return None
        is_new = self._batch is None or not self._batch.same_atoms(batch)
        self._batch = batch
        return self._mesh_choice.update(batch, is_new=is_new)[0].in_cells(cells)

    def _edges(self, graph: Graph, vectors: Tensor) -> Edges:
        """Return the edges of a graph as the operators read them."""
        lists = graph.row_ptr, graph.senders, graph.reverse
        return Edges.of_graph(*lists, vectors, self.parameters.tables.knots).to(self.dtype)
