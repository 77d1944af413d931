"""Parts of large systems in loops for CPUs."""

from __future__ import annotations

import numpy as np
import torch

from mlff_triton.engine.batch import Batch
from mlff_triton.engine.charged_step import evaluate_charged_part
from mlff_triton.engine.cpu_state import CpuModel, geometry_of
from mlff_triton.engine.host_part import HostPart, PartResults, systems_of_part
from mlff_triton.engine.part import OwnImages, PartAtoms, PartBorders
from mlff_triton.engine.step import evaluate_part
from mlff_triton.kernels.common.cpu.compilation import compile_ahead
from mlff_triton.kernels.common.cpu.threads import own_threads
from mlff_triton.kernels.neighbors.cpu.shells import rename_senders, shells, sort_edges
from mlff_triton.neighbors.box import Box, FloatArray


class CpuPart(HostPart):
    """Steps of one part, whose neighbor list is reused.

    Parameters
    ----------
    model : CpuModel
        The model.
    charge : float
        Total charge of the whole system in elementary charges.
    """

    def __init__(self, model: CpuModel, charge: float) -> None:
        super().__init__(charge, torch.device("cpu"), model.parameters.mesh_choice)
        self._model = model
        self._is_compiled = False

    def _prepare(self) -> None:
        n_atoms = len(self._numbers)
        self._batch = Batch(
            numbers=self._atoms.numbers,
            positions=np.zeros((n_atoms, 3)),
            boxes=(Box.of(None, False),),
            system=np.zeros(n_atoms, dtype=np.int64),
            charge=self._charge.numpy(),
        )
        self._systems = systems_of_part(self._model.parameters, self._atoms, self._charge)
        self._sorted_systems = self._systems.clone()
        self._status = torch.zeros(n_atoms, dtype=torch.int32)
        exchange = self._atoms.exchange
        self._neighbors = self._model.neighbors(None if exchange is None else self._atoms.n_own)
        self._rows = torch.from_numpy(self._atoms.rows)

    def _evaluate(self, positions: FloatArray) -> PartResults:
        if not self._is_compiled:
            self._is_compiled = True
            compile_ahead(self._rehearse)
        return self._compute(positions)

    def _rehearse(self) -> None:
        """Compute a part in which one atom counts."""
        sample, part = self._model.sample(), CpuPart(self._model, 0.0)
        image = OwnImages(np.zeros(1, dtype=np.int32), 1)
        exchange = None if self._atoms.exchange is None else image
        part.set_atoms(PartAtoms(sample.numbers, 1, 2, exchange))
        part._is_compiled = True
        part.step(sample.positions, per_atom=False, box=sample.boxes[0])

    @own_threads()
    def _compute(self, positions: FloatArray) -> PartResults:
        ops, p = self._model.operators, self._model.parameters
        batch = self._batch.with_positions(positions)
        edges = self._neighbors.update(batch)
        exchange, n_own = self._atoms.exchange, self._atoms.n_own
        if p.charges is not None:
            assert exchange is not None
            geometry = geometry_of(p.charges, self._neighbors, batch, edges, self._mesh)
            rename_senders(edges, self._rows)
            if geometry.near is not edges:
                rename_senders(geometry.near, self._rows)
            others = PartBorders(exchange, n_own)
            return evaluate_charged_part(ops, p, self._systems, geometry, n_own, others)
        if exchange is None:
            order, rows = shells(edges, n_own, len(p.layers))
            systems, borders = self._sorted_systems, None
            self._systems.sort(order, systems)
            edges = sort_edges(edges, order)
        else:
            rows, systems = [n_own] * (len(p.layers) + 1), self._systems
            borders = PartBorders(exchange, n_own)
            rename_senders(edges, self._rows)
        given = ops.network, p, systems, edges, self._status
        outputs = evaluate_part(*given, rows, borders)
        return outputs.forces, outputs.atoms, outputs.uncertainty
