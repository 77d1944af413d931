"""A batch on a GPU: its atoms, its neighbor matrix, and the launches of a step.

The matrix is built on the GPU by launches that are captured as a graph of their own. A step finds
out on the device whether the matrix is still valid, and reports this with its results. If it is
not, the matrix is built anew and the step repeated. This is rarely necessary: the status also tells
how far atoms have moved, so the matrix is renewed before the step in which it would become invalid.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mlff_triton._common.cuda_graphs import GraphPool
from mlff_triton.engine.batch import Batch, to_tensor
from mlff_triton.engine.charged_step import Geometry, Operators, evaluate_charged_step
from mlff_triton.engine.device_neighbors import AtomBuffers, DeviceModel, DeviceNeighbors
from mlff_triton.engine.mesh import MeshPlan
from mlff_triton.engine.step import Outputs, Systems, evaluate_step
from mlff_triton.engine.step_graph import StepGraph
from mlff_triton.errors import InputError, OverlappingAtomsError
from mlff_triton.kernels.common.compilation import compile_ahead
from mlff_triton.kernels.electrostatics.charge_channels import channel_sums
from mlff_triton.kernels.types.status import AGE, CONTACT, FAR, NOT_FINITE, OVERLAP, SHORT, STALE
from mlff_triton.model.prediction import Potentials
from mlff_triton.neighbors.box import Box, check_box

UNFIT = SHORT | FAR
"""Status bits of a matrix that has been incomplete since it was built."""


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

    Attributes
    ----------
    status : int32 [N]
        Status bits of each atom in the last step, which belong to its graph if it has one.
    has_contacts : bool
        True if atoms were in contact in the last step, by the limits of `DeviceNeighbors.watch`.
    """

    def __init__(self, model: DeviceModel, n_atoms: int, n_systems: int) -> None:
        self.model = model
        self.atoms = AtomBuffers.zeros(n_atoms, n_systems, model.device)
        self.neighbors = self._make_neighbors()
        self._batch: Batch | None = None
        self._given: Systems | None = None
        self._sorted: Systems | None = None
        # in a pool of its own, because the pool of a step is only freed with the last graph in it
        self._rebuilding: StepGraph[None] = StepGraph(None if model.pool is None else GraphPool())
        self.status = torch.zeros(n_atoms, dtype=torch.int32, device=model.device)
        self._is_built = False
        self._compiled_layout = -1
        self._age = self._last_age = 0  # see `_grow_older`
        self.mesh_choice = model.parameters.mesh_choice
        self._mesh: MeshPlan | None = None
        self.has_contacts = False

    def _make_neighbors(self) -> DeviceNeighbors:
        return DeviceNeighbors(self.model, self.atoms)

    @property
    def batch(self) -> Batch:
        """The batch that was set last, whose positions may be outdated."""
        assert self._batch is not None  # as `set_batch` precedes everything else
        return self._batch

    def set_batch(self, batch: Batch) -> None:
        """Upload what differs from the last batch, except for positions.

        Raises
        ------
        UnknownElementError
            If the model was not made for an element.
        InputError
            If a cell is far too small.
        """
        last = self._batch
        changed = _changed_boxes(last, batch)
        for k in changed:
            check_box(int(batch.counts[k]), batch.boxes[k], self.neighbors.radius)
            self.model.parameters.check_box(batch.boxes[k])
        is_new = last is None or not last.same_atoms(batch)
        if is_new:
            self._batch = None  # in case of an error, after which nothing is known
            self._set_atoms(batch)
        if self.mesh_choice is not None and (is_new or changed or batch.has_slabs):
            self._mesh, differs = self.mesh_choice.update(batch, is_new=is_new)
            self.neighbors.layout += differs  # as launches change
        if changed:
            pbc = [(last.boxes[k].pbc == batch.boxes[k].pbc).all() for k in changed] if last else []
            self._is_built = self._is_built and all(pbc)
            self.atoms.upload_boxes(batch.boxes)
        self._batch = batch

    def _set_atoms(self, batch: Batch) -> None:
        """Upload species, charges and the division of atoms into systems."""
        self.atoms.upload_systems(batch)
        numbers, charge = (to_tensor(a, self.model.device) for a in (batch.numbers, batch.charge))
        self._set_systems(Systems.of(self.model.parameters, numbers, charge, self.atoms.system_ptr))
        self._is_built = False

    def _set_systems(self, given: Systems) -> None:
        """Take over the atoms, in the user's order."""
        if self._given is None or not self._given.fits(given):
            if self._given is not None:
                self.neighbors.layout += 1  # as launches and buffers change
            self._given, self._sorted = given, given.clone()
        else:
            self._given.copy_(given)

    def build(self) -> None:
        """Build the neighbor matrix for the current positions, with as many slots as it needs.

        Raises
        ------
        InputError
            If atoms lie too far outside their cell, or have too many neighbors.
        """
        self._is_built = False
        if self._compiled_layout != self.neighbors.layout:
            compile_ahead(self._launch_both)
        self.neighbors.fit()
        self._compiled_layout = self.neighbors.layout
        self._sort()
        self._count_build()

    def rebuild(self) -> None:
        """Queue the same without waiting; the next step reports whether slots suffice."""
        self._rebuilding.run(self.launch_build, self.neighbors.layout)
        self._count_build()

    def _launch_both(self) -> None:
        self.neighbors.launch()
        self.launch()

    def _count_build(self) -> None:
        self._is_built, self._age, self._last_age = True, 0, 0
        self.model.n_builds += 1

    def launch_build(self, wanted: Tensor | None = None) -> None:
        """Launch the kernels that build the matrix, unless a flag on the GPU, int32 [], is 0."""
        self.neighbors.launch(wanted)
        self._sort()

    def _sort(self) -> None:
        """Sort the step's data of each atom into the order of the matrix."""
        assert self._given is not None  # as `set_batch` precedes everything else
        assert self._sorted is not None
        self._given.sort(self.neighbors.matrix.order, self._sorted)

    def expire(self) -> None:
        """Have the matrix built before the next step if atoms have been replaced."""
        self._age = AGE + 1

    @property
    def is_due(self) -> bool:
        """True if there is no matrix, or if it would probably be invalid in the next step."""
        return not self._is_built or self._age > AGE

    def renew(self) -> None:
        """Build the matrix if it is due."""
        if not self._is_built:
            self.build()
        elif self.is_due:
            self.rebuild()

    def launch(self) -> Outputs:
        """Launch the kernels of a step; a matrix must have been built."""
        return self.launch_in(None)

    def launch_in(self, field: Potentials | None) -> Outputs:
        """Do the same with the partial charges of the atoms in a field, if there is one."""
        assert self._sorted is not None
        model, p, geometry = self.model, self.model.parameters, self._find_edges()
        if p.charges is None:
            return evaluate_step(model.operators, p, self._sorted, geometry.near, self.status)
        operators = Operators(model.operators, model.charged_operators, channel_sums)
        return evaluate_charged_step(operators, p, self._sorted, geometry, self.status, field)

    def _find_edges(self) -> Geometry:
        """Launch the kernels that find the edges and the status of each atom."""
        near, self.status = self.neighbors.edges()
        charges = self.model.parameters.charges
        far = near if charges is not None and charges.is_truncated else None
        if self.neighbors.has_far_edges:
            far, self.status = self.neighbors.far_edges(self.status)
        mesh = None if self._mesh is None else self._mesh.in_cells(self.atoms.cell)
        return Geometry(self.atoms.positions, near, far, mesh)

    def settle(self, run: Callable[[], int]) -> None:
        """Run steps until the neighbor matrix was valid throughout the last one.

        Parameters
        ----------
        run : callable
            Runs a step, waits for it, and returns the highest status of any atom.

        Raises
        ------
        InputError
            If a position is not finite, atoms lie too far outside their cell, or have too many
            neighbors.
        OverlappingAtomsError
            If two atoms coincide.
        """
        self.renew()
        worst = run()
        for repair, reasons in ((self.rebuild, STALE | UNFIT), (self.build, UNFIT)):
            if worst & reasons and not worst & NOT_FINITE:
                repair()
                worst = run()
        self.raise_problem(worst)
        self.has_contacts = bool(worst & CONTACT)
        self._grow_older(worst & AGE)

    def _grow_older(self, age: int) -> None:
        """Set the age to its value after one more step that moves atoms as far."""
        self._age, self._last_age = 2 * age - self._last_age, age

    def raise_problems(self) -> None:
        """Raise the error that the last step reports, if any. This waits."""
        self.raise_problem(int(self.status.max()))

    def raise_problem(self, worst: int) -> None:
        """Raise the error that a status reports, if any."""
        if worst & NOT_FINITE:
            bad = self._flagged(NOT_FINITE)
            raise InputError(
                f"the position of atom {bad[0]} is NaN or infinite ({len(bad)} such atoms): "
                "the simulation may have blown up"
            )
        if worst & OVERLAP:
            raise OverlappingAtomsError(
                f"atoms {self._flagged(OVERLAP)[:2]} have come to the same point: move or remove "
                "one, or check the time step and the starting structure"
            )

    def _flagged(self, bit: int) -> list[int]:
        """Return the atoms that have a bit set in their status."""
        return torch.nonzero(self.status & bit)[:, 0].tolist()

    def wait(self) -> None:
        """Wait until the GPU has finished all work queued on the current stream."""
        if self.model.device.type == "cuda":
            torch.cuda.current_stream().synchronize()


def _changed_boxes(last: Batch | None, batch: Batch) -> list[int]:
    """Return the systems whose cell or periodic directions differ from those of the last batch."""
    if last is None:
        return list(range(len(batch.boxes)))
    if last.boxes is batch.boxes:
        return []
    pairs = enumerate(zip(last.boxes, batch.boxes, strict=True))
    return [k for k, (old, new) in pairs if not _same_box(old, new)]


def _same_box(old: Box, new: Box) -> bool:
    return old is new or bool((old.cell == new.cell).all() and (old.pbc == new.pbc).all())


def pinned(device: torch.device, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Allocate zeros on the CPU, in memory that is copied from and to a GPU without waiting."""
    on_gpu = device.type == "cuda"  # Triton's interpreter computes on the CPU, without pinning
    return torch.zeros(shape, dtype=dtype, pin_memory=on_gpu)
