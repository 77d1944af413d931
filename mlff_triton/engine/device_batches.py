"""Steps of batches that come from the CPU, and whose results return there."""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.engine.batch import Batch
from mlff_triton.engine.device_neighbors import DeviceModel
from mlff_triton.engine.device_state import DeviceState, pinned
from mlff_triton.engine.step import Outputs
from mlff_triton.engine.step_graph import StepGraph
from mlff_triton.engine.totals import WIDTH, Totals
from mlff_triton.model.prediction import Prediction


class DeviceBatches:
    """Batches of N atoms in B systems: uploaded, computed on the GPU, and downloaded.

    Parameters
    ----------
    model : DeviceModel
        The model, on the GPU.
    n_atoms, n_systems : int
        Size of the batches.
    """

    def __init__(self, model: DeviceModel, n_atoms: int, n_systems: int) -> None:
        self._state = DeviceState(model, n_atoms, n_systems)
        self._graph: StepGraph[Outputs] = StepGraph(model.pool)
        self._staging = pinned(model.device, n_atoms, 3)
        self._staged = self._staging.numpy()
        self._totals = pinned(model.device, n_systems, WIDTH)
        self._forces = pinned(model.device, n_atoms, 3)
        self._atom_energies = pinned(model.device, n_atoms)
        downloaded = Outputs(Totals(self._totals), self._forces, self._atom_energies)
        self._prediction = downloaded.prediction
        self._status = downloaded.totals.status.numpy()

    def upload(self, batch: Batch) -> None:
        """Upload the positions, and what else differs from the last batch."""
        self._staged[:] = batch.positions
        self._state.atoms.positions.copy_(self._staging, non_blocking=True)
        self._state.set_batch(batch)

    def run(self) -> Outputs:
        """Queue a step; the next one overwrites the tensors that it returns."""
        self._state.renew()
        return self._run()

    def _run(self) -> Outputs:
        return self._graph.run(self._state.launch, self._state.neighbors.layout)

    def fetch(self) -> Prediction:
        """Run a step, again if its neighbor matrix was stale, and return copies on the CPU.

        Raises
        ------
        InputError
            If a position is not finite.
        OverlappingAtomsError
            If two atoms coincide.
        """
        self._state.settle(self._run_and_download)
        return self._prediction.map(_copied)

    def _run_and_download(self) -> int:
        """Run a step, download its results, and return the highest status of any atom."""
        outputs = self._run()
        self._totals.copy_(outputs.totals.values, non_blocking=True)
        self._forces.copy_(outputs.forces, non_blocking=True)
        self._atom_energies.copy_(outputs.atom_energies, non_blocking=True)
        self._state.wait()
        return int(self._status.max())


def _copied(tensor: Tensor) -> Tensor:
    """Copy a tensor on the CPU in one thread, as several are slower when other programs run."""
    return torch.from_numpy(tensor.numpy().copy())
