"""Simulations of the engine on a CPU, with no work per atom in Python."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mlff_triton._common.torch_settings import with_own_settings
from mlff_triton.engine.batch import Batch
from mlff_triton.engine.cpu_state import CpuModel, CpuState
from mlff_triton.engine.motion import Conditions, FloatArray, Observation, State
from mlff_triton.engine.step import Outputs
from mlff_triton.engine.stepwise_dynamics import Moves, StepwiseDynamics
from mlff_triton.engine.totals import WIDTH
from mlff_triton.errors import OverlappingAtomsError
from mlff_triton.kernels.common.cpu.compilation import compile_ahead
from mlff_triton.kernels.dynamics.cpu.descent import descend
from mlff_triton.kernels.dynamics.cpu.integrator import advance
from mlff_triton.kernels.dynamics.cpu.rescaling import choose_scale
from mlff_triton.kernels.dynamics.reference.barostat import press
from mlff_triton.kernels.types.motion import Motion

LOOPS = Moves(advance, choose_scale, press, descend)
"""Operators as loops, except for the barostat, which rarely acts."""


class CpuDynamics(StepwiseDynamics):
    """Molecular dynamics of a batch on a CPU.

    Parameters
    ----------
    model : CpuModel
        The model.
    batch : Batch
        The systems.
    masses, limits
        Same as for `StepwiseDynamics`.
    """

    def __init__(
        self, model: CpuModel, batch: Batch, masses: FloatArray, limits: FloatArray | None
    ) -> None:
        pbc = np.stack([box.pbc for box in batch.boxes])
        super().__init__(batch.counts.tolist(), pbc, masses, None, LOOPS)
        self._limits = limits
        self._state, self._batch = CpuState(model), batch
        self._last_cells = np.full_like(self._cells, np.nan)

    @with_own_settings
    def begin(self, state: State, conditions: Conditions, *, is_continued: bool) -> Observation:
        """Compute forces, and prepare the next step."""
        compile_ahead(lambda: self._rehearse(conditions))
        # The step compares all distances anyway
        self._state.neighbors.lengths = self._limits if conditions.descent is None else None
        return super().begin(state, conditions, is_continued=is_continued)

    @with_own_settings
    def _rehearse(self, conditions: Conditions) -> None:
        """Run all loops of a step and of its motion, with another atom."""
        self._state.rehearse()
        positions, cell = (torch.zeros(1, *shape).double() for shape in ((3,), (3, 3)))
        motion, totals = Motion.zeros(positions, cell, torch.tensor([1])), torch.zeros(1, WIDTH)
        motion.window[1] = 1
        if conditions.descent is not None:
            descend(motion, positions, totals, conditions.descent)
            return
        if conditions.rescaling is not None:
            choose_scale(motion, conditions.integration, conditions.rescaling)
        advance(motion, positions, totals, conditions.integration)

    @with_own_settings
    def _compute(self, which: Sequence[int]) -> None:
        if not np.array_equal(self._cells, self._last_cells):
            self._batch = self._batch.with_cells(self._cells)
            self._last_cells = self._cells.copy()
        batch = self._batch.with_positions(self._positions)
        if len(which) == len(self._parts):
            outputs = self._evaluate_all(batch)
            self._forces.copy_(outputs.forces)
            self._note_uncertainty(slice(None), _as_array(outputs.uncertainty))
            self._totals.copy_(outputs.totals.values)
            return
        systems = batch.systems()
        outputs = self._state.evaluate(Batch.concatenate([systems[k] for k in which]))
        begin, known = 0, _as_array(outputs.uncertainty)
        for row, k in enumerate(which):
            part = self._parts[k]
            end = begin + part.stop - part.start
            self._forces[part] = outputs.forces[begin:end]
            self._totals[k] = outputs.totals.values[row]
            self._note_uncertainty(part, None if known is None else known[begin:end])
            begin = end

    def _evaluate_all(self, batch: Batch) -> Outputs:
        """Compute all systems; if two atoms are too close, record the one to blame."""
        try:
            return self._state.evaluate(batch)
        except OverlappingAtomsError:
            self._blamed = self._state.neighbors.blamed
            raise


def _as_array(values: Tensor | None) -> FloatArray | None:
    return None if values is None else values.double().numpy()
