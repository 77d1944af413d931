"""Steps of batches that come from the CPU and whose results return to it."""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.engine.batch import Batch, same
from mlff_triton.engine.device_neighbors import DeviceModel
from mlff_triton.engine.device_state import DeviceState, pinned
from mlff_triton.engine.step import Outputs
from mlff_triton.engine.step_graph import StepGraph
from mlff_triton.engine.totals import WIDTH, Totals
from mlff_triton.model.prediction import ExternalField, Potentials, Prediction
from mlff_triton.neighbors.box import FloatArray


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
        self._step: StepGraph[Outputs] = StepGraph(model.pool)
        self._round_trip: StepGraph[Tensor] = StepGraph(model.pool)
        self._in_field: StepGraph[Tensor] = StepGraph(model.pool)
        self._staging = pinned(model.device, n_atoms, 3)
        self._staged = self._staging.numpy()
        totals = Totals(pinned(model.device, n_systems, WIDTH))
        forces, energies = pinned(model.device, n_atoms, 3), pinned(model.device, 1, n_atoms)
        p = model.parameters
        some = (
            pinned(model.device, n_atoms, dtype=model.dtype) if has_them else None
            for has_them in (p.has_charges, p.has_uncertainty)
        )
        self._downloaded = Outputs(totals, forces, energies, *some)
        self._prediction = self._downloaded.prediction
        self._status = totals.status.numpy()
        self._limits: FloatArray | None = None

    def set(self, batch: Batch) -> None:
        """Stage the positions, and upload everything else that differs from the last batch."""
        self._staged[:] = batch.positions
        self._state.set_batch(batch)

    def watch(self, limits: FloatArray) -> None:
        """Let steps report contacts, by the lengths of atoms in Å, float64 [N]."""
        if self._limits is None or not same(limits, self._limits):
            self._state.neighbors.watch(limits)
            self._limits = limits

    @property
    def is_due(self) -> bool:
        """True if the next step will build a neighbor matrix."""
        return self._state.is_due

    @property
    def has_contacts(self) -> bool:
        """True if atoms were in contact in the last step that `fetch` ran."""
        return self._state.has_contacts

    def prepare(self) -> None:
        """Upload the staged positions, and make a neighbor matrix and graph for them.

        Raises
        ------
        InputError, OverlappingAtomsError
            As for `fetch`.
        """
        self._upload()
        self._state.settle(lambda: int(self.run().totals.status.max()))

    def run(self) -> Outputs:
        """Queue a step of the positions uploaded last; the next one overwrites its results."""
        self._state.renew()
        return self._step.run(self._state.launch, self._state.neighbors.layout)

    def fetch(self) -> Prediction:
        """Run a step, repeat it if its neighbor matrix was stale, and return copies on the CPU.

        Raises
        ------
        InputError
            If a position is not finite.
        OverlappingAtomsError
            If two atoms coincide.
        """
        return self.fetch_views().map(_copied)

    def fetch_views(self) -> Prediction:
        """Do the same as `fetch`, but return tensors on the CPU that the next step overwrites."""
        if self._state.is_due:  # the matrix is built before the step uploads positions
            self._upload()
        self._state.settle(self._run_round_trip)
        return self._prediction

    def fetch_in_field(self, field: ExternalField) -> Prediction:
        """Do the same as `fetch` for charges in a field, which is captured with the step.

        A field has its own graph until a field with another layout comes.
        """
        if self._state.is_due:
            self._upload()

        def launch() -> Tensor:
            field.prepare()
            status = self._launch_round_trip(field)
            field.finish()
            return status

        def run() -> int:
            if field.layout is None:
                return self._wait(launch())
            layout = self._state.neighbors.layout, field.layout
            return self._wait(self._in_field.run(launch, layout))

        self._state.settle(run)
        return self._prediction.map(_copied)

    def _run_round_trip(self) -> int:
        """Run a step with its transfers, and return the highest status of any atom."""
        layout = self._state.neighbors.layout
        return self._wait(self._round_trip.run(self._launch_round_trip, layout))

    def _wait(self, status: Tensor) -> int:
        """Wait for a step with this status of atoms, and return the highest status of any atom."""
        self._state.status = status
        self._state.wait()
        return int(self._status.max())

    def _launch_round_trip(self, field: Potentials | None = None) -> Tensor:
        """Launch uploads, step and downloads in one graph: calls cost more than small copies.

        Return the status of each atom.
        """
        self._upload()
        outputs = self._state.launch_in(field)
        downloaded = self._downloaded
        downloaded.totals.values.copy_(outputs.totals.values, non_blocking=True)
        downloaded.forces.copy_(outputs.forces, non_blocking=True)
        downloaded.atom_energies.copy_(outputs.atom_energies, non_blocking=True)
        for name in ("charges", "uncertainty"):
            target, source = getattr(downloaded, name), getattr(outputs, name)
            if target is not None:
                target.copy_(source, non_blocking=True)
        return self._state.status

    def _upload(self) -> None:
        self._state.atoms.positions.copy_(self._staging, non_blocking=True)


def _copied(tensor: Tensor) -> Tensor:
    """Copy a tensor on the CPU in one thread; several are slower when other programs run."""
    return torch.from_numpy(tensor.numpy().copy())
