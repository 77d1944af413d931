"""A batch on a GPU: its atoms, its neighbor matrix, and the launches of a step."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mlff_triton.engine.batch import Batch, to_tensor
from mlff_triton.engine.device_neighbors import (
    AtomBuffers,
    DeviceModel,
    DeviceNeighbors,
    copy_fields,
)
from mlff_triton.engine.step import Outputs, Systems, evaluate_step
from mlff_triton.errors import InputError, OverlappingAtomsError
from mlff_triton.kernels.neighbors.edges import NOT_FINITE, OVERLAP, STALE


class DeviceState:
    """N atoms in B systems on a GPU, whose buffers keep their addresses from step to step.

    Positions and cells are written to `atoms` by the owner of a state: from the host in
    `mlff_triton.engine.device_batches`, on the device in `mlff_triton.engine.device_resident`.

    Parameters
    ----------
    model : DeviceModel
        The model, on the GPU.
    n_atoms, n_systems : int
        Size of the batches.
    """

    def __init__(self, model: DeviceModel, n_atoms: int, n_systems: int) -> None:
        self.model = model
        self.atoms = AtomBuffers.zeros(n_atoms, n_systems, model.device)
        self.neighbors = DeviceNeighbors(model, self.atoms)
        self._batch: Batch | None = None
        self._systems: Systems | None = None
        self._status = torch.zeros(n_atoms, dtype=torch.int32, device=model.device)

    @property
    def batch(self) -> Batch:
        """The batch that was set last, whose positions may be outdated."""
        assert self._batch is not None  # as `set_batch` precedes everything else
        return self._batch

    def set_batch(self, batch: Batch) -> None:
        """Upload what differs from the last batch, except for positions."""
        last, self._batch = self._batch, batch
        if last is None or not last.same_atoms(batch):
            self.atoms.upload_systems(batch)
            self.neighbors.discard()
        if last is None or last.boxes is not batch.boxes:
            self.atoms.upload_cells(batch.boxes)
            if self.neighbors.is_built:
                self.neighbors.set_limits(batch.boxes)

    def build(self) -> None:
        """Build the neighbor matrix for the current positions.

        Raises
        ------
        UnknownElementError
            If the model was not made for an element.
        InputError
            If a cell is far too small, or atoms lie too far outside theirs.
        """
        batch, device = self.batch, self.model.device
        matrix = self.neighbors.find(batch)
        systems = Systems.of(
            self.model.parameters,
            to_tensor(batch.numbers, device),
            to_tensor(batch.charge, device),
            self.atoms.system_ptr,
            matrix.order,
        )
        self.neighbors.keep(matrix, batch.boxes)
        if self._systems is None:
            self._systems = systems
        else:
            copy_fields(systems, self._systems)

    def launch(self) -> Outputs:
        """Launch the kernels of a step; a matrix must have been built."""
        assert self._systems is not None
        model = self.model
        near, self._status = self.neighbors.edges()
        return evaluate_step(model.operators, model.parameters, self._systems, near, self._status)

    def settle(self, run: Callable[[], int]) -> None:
        """Run steps until the neighbor matrix was valid throughout the last one.

        Parameters
        ----------
        run : callable
            Runs a step, waits for it, and returns the highest status of any atom.

        Raises
        ------
        InputError
            If a position is not finite.
        OverlappingAtomsError
            If two atoms coincide.
        """
        worst = run()
        if worst in (STALE, STALE | OVERLAP):
            self.build()
            worst = run()
        if worst & NOT_FINITE:
            bad = self._flagged(NOT_FINITE)
            raise InputError(
                f"the position of atom {bad[0]} is NaN or infinite ({len(bad)} such atoms): "
                "the simulation may have blown up"
            )
        if worst & OVERLAP:
            raise OverlappingAtomsError(
                f"atoms {self._flagged(OVERLAP)[:2]} have come to one point: move or remove one, "
                "or check the time step and the starting structure"
            )

    def _flagged(self, bit: int) -> list[int]:
        """Return the atoms that have a bit set in their status."""
        return torch.nonzero(self._status & bit)[:, 0].tolist()

    def wait(self) -> None:
        """Wait until the GPU has finished all work queued on the current stream."""
        if self.model.device.type == "cuda":
            torch.cuda.current_stream().synchronize()


def pinned(device: torch.device, *shape: int) -> Tensor:
    """Allocate float64 zeros on the CPU that are copied from and to a GPU without waiting."""
    on_gpu = device.type == "cuda"  # Triton's interpreter computes on the CPU, without pinning
    return torch.zeros(shape, dtype=torch.float64, pin_memory=on_gpu)
