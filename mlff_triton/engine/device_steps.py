"""Steps that stay on a GPU: neighbor rows, Triton kernels, and the whole of it as one CUDA graph.

A step uploads positions, replays a graph and downloads energies and forces. Whether the neighbor
rows still hold is found out on the device, in the step itself, and comes back with its results; if
they do not, the step is done once more with new rows. Nothing is ever dropped: rows that are too
short are built again with more room.

For a program that has its positions on the GPU, and wants the forces there, a system can be
resident: of its steps only energy and status are downloaded.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from mlff_triton._common.cuda_graphs import record
from mlff_triton.engine.batch import Batch, same, to_tensor
from mlff_triton.engine.host_steps import ResidentStep, Units
from mlff_triton.engine.parameters import Parameters
from mlff_triton.engine.step import Outputs, Systems, step
from mlff_triton.errors import BackendError, InputError, OverlappingAtomsError
from mlff_triton.kernels.neighbors.edges import NOT_FINITE, OVERLAP, STALE, edges
from mlff_triton.kernels.neighbors.neighbor_list import build_rows
from mlff_triton.kernels.tensornet import operators as kernels
from mlff_triton.kernels.types.edges import Edges
from mlff_triton.kernels.types.neighbor_matrix import MAX_REACH, NeighborMatrix
from mlff_triton.model.prediction import Prediction
from mlff_triton.neighbors.box import Box, check_box, deformation
from mlff_triton.neighbors.verlet_list import check_skin

FIRST_CAPACITY = 64  # slots of an atom before anything is known
CAPACITY_STEP = 16  # each capacity is compiled for, so there are few
KEPT_GRAPHS = 8
MARGIN = 1e-6  # Å that the rows' reach is rounded down by


class DeviceSteps:
    """Steps of one model on one GPU, from any thread, one call at a time.

    Parameters
    ----------
    parameters : Parameters
        The model, on the GPU.
    cutoff, skin : float
        Å.
    dtype : torch.dtype
        Of the network.
    graphs : bool
        Whether steps become CUDA graphs.
    """

    def __init__(
        self,
        parameters: Parameters,
        cutoff: float,
        device: torch.device,
        dtype: torch.dtype,
        skin: float,
        graphs: bool = True,
    ) -> None:
        check_skin(skin)
        self.parameters = parameters
        self.cutoff, self.skin = cutoff, skin
        self.device, self.dtype = device, dtype
        self.graphs = graphs
        self.n_builds = 0
        self._pool = torch.cuda.graph_pool_handle() if graphs else None
        self._states: OrderedDict[tuple[int, int], DeviceState] = OrderedDict()

    def evaluate(self, batch: Batch) -> Prediction:
        """Energies, forces and virials of a batch, on the CPU."""
        with self._on_gpu(batch):
            return self._state(batch).fetch()

    def prepare(self, batch: Batch) -> Callable[[], Prediction]:
        """A function that queues the step of a batch, without waiting or looking at its status.

        What it returns is overwritten by the next step of a batch of this size.
        """
        with self._on_gpu(batch):
            state = self._state(batch)
            state.fetch()

        def queue() -> Prediction:
            with torch.cuda.device_of(self.parameters.receiver):
                return state.run().prediction

        return queue

    def resident(self, batch: Batch, units: Units) -> ResidentStep:
        """A function for the steps of one system, wherever its atoms go: `ResidentState.step`."""
        with self._on_gpu(batch):
            state = ResidentState(self, batch, units)

        def step(positions: Tensor, cell: Tensor | None) -> tuple[Tensor, Tensor]:
            with self._on_gpu(batch):
                return state.step(positions, cell)

        return step

    @contextmanager
    def _on_gpu(self, batch: Batch) -> Iterator[None]:
        """Work on this GPU, and turn a lack of memory into an error that says how much it takes."""
        try:
            with torch.cuda.device_of(self.parameters.receiver):
                yield
        except torch.OutOfMemoryError as error:
            self._states.clear()
            config, n_atoms = self.parameters.config, len(batch.numbers)
            size = config.hidden_channels, config.num_layers, self.dtype
            raise BackendError(
                f"{n_atoms} atoms need about {step_memory(n_atoms, *size) / 2**30:.2g} GiB of GPU "
                "memory, more than is free: use fewer atoms at a time, or dtype='float32'"
            ) from error

    def _state(self, batch: Batch) -> DeviceState:
        """The buffers for batches of this size, filled with this one."""
        key = len(batch.numbers), len(batch.boxes)
        state = self._states.pop(key, None) or DeviceState(self, *key)
        self._states[key] = state
        while len(self._states) > KEPT_GRAPHS:
            self._states.popitem(last=False)
        state.fill(batch)
        return state


class DeviceState:
    """Static buffers for N atoms in B systems, and the graph that works on them."""

    def __init__(self, steps: DeviceSteps, n_atoms: int, n_systems: int) -> None:
        device = steps.device

        def floats(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64, device=device)

        self._steps = steps
        self._staging = _pinned(device, n_atoms, 3)
        self._staged = self._staging.numpy()
        self._results = Outputs(
            _pinned(device, n_systems, 11), _pinned(device, n_atoms, 3), _pinned(device, n_atoms)
        )
        self._prediction = self._results.prediction
        self._worst = self._results.status.numpy()
        self._positions, self._built = floats(n_atoms, 3), floats(n_atoms, 3)
        self._cell, self._strain = floats(n_systems, 3, 3), floats(n_systems, 3, 3)
        self._limit = floats(n_systems)
        self._system = torch.zeros(n_atoms, dtype=torch.int32, device=device)
        self.system_ptr = torch.zeros(n_systems + 1, dtype=torch.int32, device=device)
        self._batch: Batch | None = None
        self._built_boxes: tuple[Box, ...] = ()
        self._rows: NeighborMatrix | None = None
        self._systems: Systems | None = None
        self._status = torch.zeros(n_atoms, dtype=torch.int32, device=device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._outputs: Outputs | None = None

    def fill(self, batch: Batch) -> None:
        """Take over what has changed since the last batch."""
        last, self._batch = self._batch, batch
        self._staged[:] = batch.positions
        self._positions.copy_(self._staging, non_blocking=True)
        same_atoms = (
            last is not None
            and same(last.numbers, batch.numbers)
            and same(last.system, batch.system)
            and same(last.charge, batch.charge)
        )
        if not same_atoms:
            self._system.copy_(to_tensor(batch.system, self._system.device))
            self.system_ptr.copy_(to_tensor(batch.system_ptr, self._system.device))
            self._built_boxes = ()
        if last is None or last.boxes is not batch.boxes:
            cells = np.stack([box.cell for box in batch.boxes])
            self._cell.copy_(to_tensor(cells, self._cell.device))
            if self._built_boxes:
                self._set_limits()

    def run(self) -> Outputs:
        """Queue a step; what it returns is overwritten by the next one."""
        if not self._built_boxes:
            self._build()
        if not self._steps.graphs:
            return self._step()
        if self._graph is None:
            self._capture()
        assert self._graph is not None
        assert self._outputs is not None
        self._graph.replay()
        return self._outputs

    def fetch(self) -> Prediction:
        """Run a step, wait for it, repeat it if its rows were stale; results are on the CPU.

        Raises
        ------
        InputError
            If a position is not finite.
        OverlappingAtomsError
            If atoms have come to one point.
        """
        self._settle(self._results)
        return self._prediction.map(_copied)

    def _settle(self, targets: Iterable[Tensor]) -> None:
        """Run steps until their results hold, and leave these in targets; errors as for `fetch`."""
        worst = self._run_and_wait(targets)
        if worst in (STALE, STALE | OVERLAP):
            self._build()
            worst = self._run_and_wait(targets)
        if worst & NOT_FINITE:
            bad = self._flagged(NOT_FINITE)
            raise InputError(
                f"the position of atom {bad[0]} is NaN or infinite ({len(bad)} such atoms): "
                "the simulation may have blown up"
            )
        if worst & OVERLAP:
            raise OverlappingAtomsError(
                f"atoms {self._flagged(OVERLAP)[:2]} have come to one point: move or remove one, "
                "or look at the time step and the starting structure"
            )

    def _run_and_wait(self, targets: Iterable[Tensor]) -> int:
        """Run a step, copy the first of its outputs to targets, and return the highest status."""
        for target, output in zip(targets, self.run(), strict=False):
            target.copy_(output, non_blocking=True)
        self._wait()
        return int(self._worst.max())

    def _wait(self) -> None:
        if self._positions.is_cuda:
            torch.cuda.current_stream().synchronize()

    def _flagged(self, bit: int) -> list[int]:
        return torch.nonzero(self._status & bit)[:, 0].tolist()

    def _step(self) -> Outputs:
        assert self._systems is not None
        near, self._status = self._edges()
        return step(kernels, self._steps.parameters, self._systems, near, self._status)

    def _edges(self) -> tuple[Edges, Tensor]:
        """The edges of now, and the status of each atom."""
        assert self._rows is not None
        return edges(
            self._positions,
            self._built,
            self._cell,
            self._strain,
            self._limit,
            self._system,
            self._rows,
            self._steps.parameters.tables.knots,
            self._steps.cutoff,
            self._steps.dtype,
        )

    def _capture(self) -> None:
        """Record the step as a graph."""
        self._graph, self._outputs = record(self._step, self._steps._pool)

    def _build(self) -> None:
        """Build the neighbor rows where the atoms are now."""
        batch, steps = self._batch, self._steps
        assert batch is not None
        radius = steps.cutoff + steps.skin
        for box, count in zip(batch.boxes, batch.counts.tolist(), strict=True):
            check_box(count, box, radius)
        device = self._positions.device
        pbc = to_tensor(np.stack([box.pbc for box in batch.boxes]), device)
        system = self._system.long()
        capacity = FIRST_CAPACITY if self._rows is None else self._rows.senders.shape[1]
        while True:
            rows = build_rows(self._positions, self._cell, pbc, system, radius, capacity)
            needed, reach = torch.stack([rows.needed, rows.reach]).tolist()
            if reach > MAX_REACH:
                raise InputError(
                    "atoms lie too far outside their cell, or are not finite: wrap them into it, "
                    "or the simulation may have blown up"
                )
            if needed <= capacity:
                break
            capacity = -(-(needed + needed // 16) // CAPACITY_STEP) * CAPACITY_STEP
        steps.n_builds += 1
        self._take(rows, batch)
        self._built.copy_(self._positions)
        self._built_boxes = batch.boxes
        self._set_limits()

    def _take(self, rows: NeighborMatrix, batch: Batch) -> None:
        """Put rows where the graph expects them; a graph of other sizes is let go."""
        device = self._positions.device
        systems = Systems.of(
            self._steps.parameters,
            to_tensor(batch.numbers, device),
            to_tensor(batch.charge, device),
            self.system_ptr,
            rows.order,
        )
        if self._rows is None or self._rows.senders.shape != rows.senders.shape:
            self._rows, self._systems = rows, systems
            self._graph = self._outputs = None
            return
        assert self._systems is not None
        for kept, new in ((self._rows, rows), (self._systems, systems)):
            for old_tensor, new_tensor in zip(vars(kept).values(), vars(new).values(), strict=True):
                old_tensor.copy_(new_tensor)

    def _set_limits(self) -> None:
        """How far atoms may move in the cells of now, so that no pair is missed."""
        assert self._batch is not None
        steps, boxes = self._steps, self._batch.boxes
        strains, limits = np.empty((len(boxes), 3, 3)), np.empty(len(boxes))
        for k, (old, new) in enumerate(zip(self._built_boxes, boxes, strict=True)):
            if (old.pbc != new.pbc).any():
                strain, sigma = np.eye(3), 0.0  # other images: the rows are of no use
            else:
                strain, sigma = deformation(old, new)
            reach = sigma * (steps.cutoff + steps.skin) - steps.cutoff
            strains[k], limits[k] = strain, reach / 2 - MARGIN
        self._strain.copy_(to_tensor(strains, self._strain.device))
        self._limit.copy_(to_tensor(limits, self._limit.device))


class ResidentState(DeviceState):
    """One system whose positions, cell and forces stay on the GPU, in the units of a program.

    How far atoms may move before rows are built anew is worked out by the host, from the cell. So
    that no step has to wait for it, the cell comes down after the step, nine numbers together with
    energy and status. Mostly it is the one that the host knows, and that was all. If it is not,
    energy and forces are right nevertheless, for edges are measured in the cell on the GPU; only
    the status came from the limits for another cell, and is asked for once more: one kernel and a
    second wait.
    """

    def __init__(self, steps: DeviceSteps, batch: Batch, units: Units) -> None:
        super().__init__(steps, len(batch.numbers), 1)
        self.fill(batch)
        self._units = units
        self._periodic = to_tensor(batch.boxes[0].pbc[:, None], steps.device)
        self._given = torch.zeros_like(self._positions)
        self._given_cell = self._cell[0] / units.length
        self._forces: Tensor  # of the step that was queued last, as is what goes to the host
        self._report: Tensor
        self._downloaded = _pinned(steps.device, 20)
        self._seen = self._downloaded.numpy()  # totals, and the cell
        self._seen_cell = self._seen[11:].reshape(3, 3)

    @torch.no_grad()
    def step(self, positions: Tensor, cell: Tensor | None) -> tuple[Tensor, Tensor]:
        """Energy and forces where the atoms are now, in the program's units.

        Parameters
        ----------
        positions : [N, 3]
            Of any floating-point dtype, on the GPU unless they are to be copied to it.
        cell : [3, 3], optional
            Lattice vectors (rows), likewise; those of the step before by default.

        Returns
        -------
        energy : float64 []
            On the CPU: it has come there with the status.
        forces : [N, 3]
            Of the positions' dtype, on the GPU, for the caller to keep.

        Raises
        ------
        InputError
            If a number is not finite, or the cell is not one.
        OverlappingAtomsError
            If atoms have come to one point.
        """
        if positions.dtype != self._given.dtype:
            self._given = self._given.to(positions.dtype)
            self._graph = None
        self._given.copy_(positions)
        if cell is not None:
            self._given_cell.copy_(cell)
        forces = torch.empty_like(self._given)
        self._settle([forces])
        return torch.tensor(self._seen[0] / self._units.energy), forces

    def _step(self) -> Outputs:
        """From the program's numbers to the program's numbers."""
        self._take_over()
        outputs = super()._step()
        forces = outputs.forces * (self._units.length / self._units.energy)
        self._forces = forces.to(self._given.dtype)
        self._report = torch.cat([outputs.totals[0], self._cell.flatten()])
        return outputs

    def _take_over(self) -> None:
        length, rows = self._units.length, self._cell[0]
        torch.mul(self._given.double(), length, out=self._positions)
        torch.where(self._periodic, self._given_cell * length, rows, out=rows)

    def _run_and_wait(self, targets: Iterable[Tensor]) -> int:
        """As of any state, in the cell that is on the GPU; the only target is for the forces."""
        assert self._batch is not None
        if not self._built_boxes:
            self._take_over()
            self._seen_cell[:] = self._cell[0].cpu()
            self._take_cell()
        self.run()
        self._downloaded.copy_(self._report, non_blocking=True)
        for target in targets:
            target.copy_(self._forces)
        self._wait()
        if same(self._seen_cell, self._batch.boxes[0].cell):
            return int(self._seen[10])
        self._take_cell()
        self._set_limits()
        return int(self._edges()[1].max())

    def _take_cell(self) -> None:
        """Let the batch have the cell that has come down."""
        assert self._batch is not None
        box = Box.of(self._seen_cell, self._batch.boxes[0].pbc)
        self._cell[0].copy_(to_tensor(box.cell, self._cell.device))
        self._batch = replace(self._batch, boxes=(box,))


def _copied(tensor: Tensor) -> Tensor:
    """A copy on the CPU, by one thread: several are slower where other programs keep them busy."""
    return torch.from_numpy(tensor.numpy().copy())


def _pinned(device: torch.device, *shape: int) -> Tensor:
    """Numbers on the CPU that are copied from and to a GPU without waiting."""
    on_gpu = device.type == "cuda"  # elsewhere only Triton's interpreter comes here
    return torch.zeros(shape, dtype=torch.float64, pin_memory=on_gpu)


def step_memory(n_atoms: int, channels: int, layers: int, dtype: torch.dtype) -> int:
    """Bytes that a step takes at its peak, about, without what any step takes.

    Each layer keeps four tensors [9, N, F] for its backward pass, and eight more are alive besides;
    an atom has about ninety slots for neighbors (5 Å in water), of eight numbers and indices each.
    """
    tensors = (8 + 4 * layers) * 9 * n_atoms * channels * dtype.itemsize
    return tensors + 90 * n_atoms * (6 * dtype.itemsize + 24)
