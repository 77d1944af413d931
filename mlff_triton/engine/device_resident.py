"""Steps of one system whose positions and forces stay on the GPU."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mlff_triton.engine.batch import Batch, to_tensor
from mlff_triton.engine.device_neighbors import DeviceModel
from mlff_triton.engine.device_state import DeviceState, pinned
from mlff_triton.engine.step_graph import StepGraph
from mlff_triton.engine.steps import Units
from mlff_triton.engine.totals import WIDTH, Totals


@dataclass(frozen=True)
class Report:
    """A typed view of everything that is downloaded per step.

    Attributes
    ----------
    values : float64 [20]
        Totals of the system, and its cell row by row.
    """

    values: Tensor

    @classmethod
    def of(cls, totals: Totals, cell: Tensor) -> Report:
        """Pack the totals [1, 11] and the cell [1, 3, 3] of one system."""
        return cls(torch.cat([totals.values[0], cell.flatten()]))

    @property
    def totals(self) -> Totals:
        """Energy, virial and status, of one system."""
        return Totals(self.values[None, :WIDTH])

    @property
    def cell(self) -> Tensor:
        """Lattice vectors (rows) in Å, float64 [3, 3]."""
        cell: Tensor = self.values[WIDTH:].unflatten(0, (3, 3))
        return cell


class DeviceResident:
    """One system whose positions, cell and forces stay on the GPU, in the units of a program.

    The cell is downloaded after the step, with energy and status, so that the host can check it.

    Parameters
    ----------
    model : DeviceModel
        The model, on the GPU.
    batch : Batch
        One system; its positions do not matter.
    units : Units
        The program's units.
    """

    def __init__(self, model: DeviceModel, batch: Batch, units: Units) -> None:
        self._state = DeviceState(model, len(batch.numbers), 1)
        self._state.set_batch(batch)
        self._graph: StepGraph[Tensor] = StepGraph(model.pool)
        self._units = units
        # One-dimensional, because PyTorch rounds a product with a number to the precision of the
        # tensor
        self._length = to_tensor(np.array([units.length]), model.device)
        self._periodic = to_tensor(batch.boxes[0].pbc[:, None], model.device)
        # The program's positions and cell, at fixed addresses
        self._given = torch.zeros_like(self._state.atoms.positions)
        self._given_cell = self._state.atoms.cell[0] / units.length
        self._forces = torch.empty_like(self._given)  # of the last step, a new tensor each time
        self._downloaded = Report(pinned(model.device, WIDTH + 9))
        self._energy = self._downloaded.totals.energy.numpy()
        self._status = self._downloaded.totals.status.numpy()
        self._cell = self._downloaded.cell.numpy()

    @torch.no_grad()
    def step(self, positions: Tensor, cell: Tensor | None) -> tuple[Tensor, Tensor]:
        """Compute energy and forces for the current positions, in the program's units.

        Parameters
        ----------
        positions : [N, 3]
            Positions of any floating-point dtype; they are copied if they are not on the GPU.
        cell : [3, 3], optional
            Lattice vectors (rows), treated in the same way; by default, those of the last step.

        Returns
        -------
        energy : float64 []
            On the CPU, where it was downloaded with the status.
        forces : [N, 3]
            On the GPU, of the positions' dtype; a new tensor.

        Raises
        ------
        InputError
            If a value is not finite, or the cell is singular or too small.
        OverlappingAtomsError
            If two atoms coincide.
        """
        if positions.dtype != self._given.dtype:
            self._given = self._given.to(positions.dtype)
            self._graph.discard()
        self._given.copy_(positions)
        if cell is not None:
            self._given_cell.copy_(cell)
        if self._state.is_due:
            self._convert_inputs()
            self._cell[:] = self._state.atoms.cell[0].cpu()
            self._check_cell()
        self._state.settle(self._run_and_wait)
        return torch.tensor(self._energy[0] / self._units.energy), self._forces

    def _launch(self) -> Tensor:
        """Launch a step, from the program's positions to its forces, and download the report."""
        self._convert_inputs()
        outputs = self._state.launch()
        report = Report.of(outputs.totals, self._state.atoms.cell)
        self._downloaded.values.copy_(report.values, non_blocking=True)
        forces = torch.empty_like(self._given)
        return torch.mul(outputs.forces, self._units.length / self._units.energy, out=forces)

    def _convert_inputs(self) -> None:
        """Convert positions and periodic cell vectors to Å, in the buffers of the step."""
        atoms = self._state.atoms
        rows = atoms.cell[0]
        torch.mul(self._given, self._length, out=atoms.positions)
        torch.where(self._periodic, self._given_cell * self._length, rows, out=rows)

    def _run_and_wait(self) -> int:
        """Run a step, copy its forces, and return the highest status of any atom."""
        layout = self._state.neighbors.layout
        self._forces = self._graph.run(self._launch, layout).clone()
        self._state.wait()
        self._check_cell()
        if self._state.neighbors.layout != layout:  # because the cell has outgrown its mesh
            return self._run_and_wait()
        return int(self._status[0])

    def _check_cell(self) -> None:
        """Raise `InputError` unless the downloaded cell is valid."""
        self._state.set_batch(self._state.batch.with_box(self._cell))
