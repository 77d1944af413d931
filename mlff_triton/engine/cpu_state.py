"""Steps of batches in loops for CPUs, and the data they reuse while the atoms stay the same."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from mlff_triton.engine.batch import Batch
from mlff_triton.engine.charge_parameters import ChargeParameters
from mlff_triton.engine.charged_step import Geometry, Operators, evaluate_charged_step
from mlff_triton.engine.cpu_neighbors import CpuNeighbors
from mlff_triton.engine.mesh import Mesh
from mlff_triton.engine.parameters import Parameters
from mlff_triton.engine.step import Outputs, Systems, evaluate_step
from mlff_triton.kernels.common.cpu.compilation import compile_ahead
from mlff_triton.kernels.common.cpu.recording import Repeated
from mlff_triton.kernels.common.cpu.threads import n_threads, own_threads
from mlff_triton.kernels.types.edges import Edges
from mlff_triton.model.prediction import Potentials

LARGEST = 500
"""Largest number of atoms of a recorded step. In larger steps, Python takes little of the time.

A recording keeps all tensors of a step, some 40 of 36 N F bytes in single precision.
"""


@dataclass(frozen=True)
class CpuModel:
    """A model and its operators.

    Attributes
    ----------
    operators : Operators
        Loops for CPUs.
    parameters : Parameters
        The model.
    skin : float
        Å.
    dtype : torch.dtype
        Precision of the network.
    """

    operators: Operators
    parameters: Parameters
    skin: float
    dtype: torch.dtype

    def neighbors(self, n_first: int | None = None) -> CpuNeighbors:
        """Return neighbor lists for future systems; see `CpuNeighbors` for ``n_first``."""
        p = self.parameters
        return CpuNeighbors(p.cutoff, self.skin, p.tables.knots, self.dtype, n_first)

    def sample(self) -> Batch:
        """Return two atoms with which loops can be compiled."""
        element = self.parameters.config.elements[0]
        box = (20 * np.eye(3), True) if self.parameters.mesh_choice is not None else ()
        return Batch.of([element, element], [[0.0, 0.0, 0.0], [0.0, 0.0, 1.0]], *box)


class CpuState:
    """Steps of batches that mostly differ little from the batch before.

    Parameters
    ----------
    model : CpuModel
        The model.
    """

    def __init__(self, model: CpuModel) -> None:
        self._model = model
        self.neighbors = model.neighbors()
        self._batch: Batch | None = None
        self._mesh_choice = model.parameters.mesh_choice
        self._mesh: Mesh | None = None
        self._repeated: Repeated[Outputs] = Repeated()
        self._is_compiled = False

    def evaluate(self, batch: Batch, field: Potentials | None = None) -> Outputs:
        """Compute the results of a batch, with its partial charges in a field if given.

        Raises
        ------
        InputError
            If a box is too small for a Coulomb energy, atoms lie too far apart, or have too many
            neighbors.
        OverlappingAtomsError
            If two atoms coincide.
        UnknownElementError
            If the model was not made for an element.
        """
        if not self._is_compiled:
            self._is_compiled = True
            compile_ahead(self.rehearse)
        return self._compute(batch, field)

    def rehearse(self) -> None:
        """Run all loops of a step, for `compile_ahead`."""
        CpuState(self._model)._compute(self._model.sample())

    @own_threads()
    def _compute(self, batch: Batch, field: Potentials | None = None) -> Outputs:
        self._set(batch)
        ops, p = self._model.operators, self._model.parameters
        edges = self.neighbors.update(batch)
        if p.charges is None:
            return self._evaluate_local(edges)
        geometry = geometry_of(p.charges, self.neighbors, batch, edges, self._mesh)
        return evaluate_charged_step(ops, p, self._systems, geometry, self._status, field)

    def _evaluate_local(self, edges: Edges) -> Outputs:
        """Compute a step of a model without charges; replay the recording if it fits."""
        ops, p = self._model.operators.network, self._model.parameters
        given = self._systems, edges, self._status

        def evaluate() -> Outputs:
            return evaluate_step(ops, p, *given)

        if len(self._status) > LARGEST:
            return evaluate()
        return self._repeated.compute(evaluate, *given, n_threads()).clone()

    def _set(self, batch: Batch) -> None:
        """Look up what does not depend on positions, if it has changed."""
        old, p = self._batch, self._model.parameters
        self._batch = None  # in case of an error, after which no state is known
        is_other = old is None or old.boxes is not batch.boxes
        if is_other:
            for box in batch.boxes:
                p.check_box(box)
        is_new = old is None or not old.same_atoms(batch)
        if self._mesh_choice is not None and (is_other or is_new or batch.has_slabs):
            plan, _ = self._mesh_choice.update(batch, is_new=is_new)
            cells = np.stack([box.cell for box in batch.boxes])
            self._mesh = plan.in_cells(torch.from_numpy(cells))
        if is_new:
            atoms = batch.numbers, batch.charge, batch.system_ptr
            self._systems = Systems.of(p, *map(torch.from_numpy, atoms))
            self._status = torch.zeros(len(batch.numbers), dtype=torch.int32)
        self._batch = batch


def geometry_of(
    charges: ChargeParameters,
    neighbors: CpuNeighbors,
    batch: Batch,
    edges: Edges,
    mesh: Mesh | None,
) -> Geometry:
    """Return the arguments of a TensorNet2 step, given the updated edges of a batch."""
    near, far = edges, edges if charges.is_truncated else None
    if charges.network_cutoff < charges.list_cutoff:
        near = neighbors.within(charges.network_cutoff, batch)
    return Geometry(torch.from_numpy(batch.positions), near, far, mesh)
