"""Parts of large systems on a GPU, padded so that one CUDA graph serves changing atoms.

The buffers have a reserve. Their last atoms are padding: they lie in a system of their own, far
from one another, and have no edges. Atoms are sorted into shells (`kernels.neighbors.shells`)
whenever the neighbor matrix is built, and each operator computes some shells, see `evaluate_part`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from mlff_triton.engine.batch import to_tensor
from mlff_triton.engine.charged_step import Operators, evaluate_charged_part
from mlff_triton.engine.device_borders import AloneBorders, DeviceBorders
from mlff_triton.engine.device_neighbors import AtomBuffers, DeviceModel, DeviceNeighbors
from mlff_triton.engine.device_state import DeviceState, pinned
from mlff_triton.engine.mesh import MeshPlan, PartMesh
from mlff_triton.engine.part import (
    ALIGNMENT,
    PartAtoms,
    PartPrediction,
    own_errors,
    reserved,
    virials_of,
)
from mlff_triton.engine.step import Outputs, Systems, evaluate_part
from mlff_triton.engine.step_graph import StepGraph
from mlff_triton.engine.totals import WIDTH, Totals
from mlff_triton.kernels.electrostatics.charge_channels import channel_sums
from mlff_triton.kernels.neighbors.shells import count_hops, renumbered, sort_by_hops
from mlff_triton.neighbors.box import Box, FloatArray
from mlff_triton.neighbors.neighbor_list import check_positions


def is_wasteful(n_rows: int, needed: int) -> bool:
    """Return True if so many rows are unused that smaller buffers are worth a new CUDA graph."""
    return n_rows > 1.25 * needed + ALIGNMENT


class PartNeighbors(DeviceNeighbors):
    """The neighbor matrix of a part, whose atoms are sorted into shells.

    Parameters
    ----------
    model : DeviceModel
        Cutoff, skin and capacity.
    atoms : AtomBuffers
        The atoms of the part, and padding as a second system.
    borders : DeviceBorders or None
        Rows of atoms at the borders, with an exchange.

    Attributes
    ----------
    n_own : int32 [1]
        Number of own atoms.
    sizes : list of int
        Rows of atoms with h hops, for each h up to the number of layers; with an exchange, rows of
        own atoms only.
    """

    def __init__(
        self, model: DeviceModel, atoms: AtomBuffers, borders: DeviceBorders | None
    ) -> None:
        super().__init__(model, atoms)
        self._borders = borders
        self.names = None if borders is None else borders.names
        n_shells = 1 if borders else model.parameters.config.num_layers + 1
        self.n_own = torch.zeros(1, dtype=torch.int32, device=model.device)
        # Until hops are known
        self.sizes = [len(atoms.positions) // ALIGNMENT // n_shells * ALIGNMENT] * n_shells
        self._are_hops_known = False
        self._sizes = torch.tensor(self.sizes, device=model.device)

    def _allocate(self, capacities: list[int]) -> None:
        super()._allocate(capacities)
        sorted_ = renumbered(self._found)
        same = {"order": sorted_.order, "rank": sorted_.rank}
        self._read = [sorted_, *(replace(renumbered(rows), **same) for rows in self._short)]

    @property
    def rows(self) -> list[int]:
        """Rows that are computed for h hops, for each h up to the number of layers."""
        n_layers = self._model.parameters.config.num_layers
        return self.sizes * (n_layers + 1) if self._borders else list(accumulate(self.sizes))

    def launch(self, wanted: Tensor | None = None) -> None:
        """Launch the kernels that build the matrix, and that sort atoms into shells."""
        super().launch(wanted)
        n_atoms = self._atoms.system_ptr[1:2]
        self._hops = count_hops(self._found, self.n_own, n_atoms, len(self.sizes) - 1)
        self._sort_atoms()

    def _sort_atoms(self) -> None:
        shorter = (self._short[0], self._read[1]) if self._short else None
        sort_by_hops(self._found, *self._hops, self._sizes, self.matrix, shorter)
        if self._borders is not None:
            self._borders.name(self.matrix, self.n_own, self.sizes[0])

    def fit(self) -> None:
        """Build the matrix and the shells with as many slots and rows as they need.

        This waits for the GPU.

        Raises
        ------
        InputError
            If atoms lie too far outside their cell, or have too many neighbors.
        """
        super().fit()
        sizes = self._best_sizes()
        if sizes != self.sizes:
            self.sizes = sizes
            self._sizes.copy_(torch.tensor(sizes))
            self.layout += 1
        self._are_hops_known = True
        self._sort_atoms()

    def _best_sizes(self) -> list[int]:
        """Return the sizes of shells with a reserve; they shrink only if that pays."""
        *counts, n_beyond, _ = self._hops[1].tolist()
        least = [reserved(count) for count in counts]
        if not self._are_hops_known:
            return least
        pairs = zip(least, self.sizes, strict=True)
        kept = [new if is_wasteful(old, new) else max(old, new) for new, old in pairs]
        if self._borders is not None:
            n_beyond = max(n_beyond, self._borders.n_others)  # whose species follow the first rows
        return kept if sum(kept) + n_beyond <= len(self._atoms.positions) else least


class PartState(DeviceState):
    """A part on a GPU, with padding.

    Parameters
    ----------
    model : DeviceModel
        The model, on the GPU.
    n_rows : int
        Number of atoms and padding.
    charge : float
        Total charge of the whole system in elementary charges.
    exchanges : bool
        True if processes exchange tensors.
    """

    neighbors: PartNeighbors

    def __init__(self, model: DeviceModel, n_rows: int, charge: float, *, exchanges: bool) -> None:
        self._borders = DeviceBorders(n_rows, model.device) if exchanges else None
        super().__init__(model, n_rows, 2)
        self._own_ptr = torch.zeros(3, dtype=torch.int32, device=model.device)
        self._charge = torch.full((2,), charge, dtype=torch.float64, device=model.device)
        self.atoms.cell.copy_(torch.eye(3, dtype=torch.float64))
        self._plan: MeshPlan | None = None
        self._cell = self.atoms.cell[:1].clone()  # of the whole system, for its mesh

    def set_mesh(self, plan: MeshPlan, box: Box) -> None:
        """Take over the mesh of the whole system and its cell."""
        self.neighbors.layout += plan != self._plan  # as launches change
        self._plan = plan
        self._cell.copy_(torch.from_numpy(box.cell))

    def _make_neighbors(self) -> PartNeighbors:
        return PartNeighbors(self.model, self.atoms, self._borders)

    def set_part(self, part: PartAtoms) -> None:
        """Upload other atoms, fewer than there are rows.

        Raises
        ------
        UnknownElementError
            If the model was not made for an element.
        """
        n_atoms, n_rows, device = len(part.numbers), len(self.atoms.system), self.model.device
        numbers = np.full(n_rows, part.numbers[0])
        numbers[:n_atoms] = part.numbers
        self.atoms.system_ptr.copy_(torch.tensor([0, n_atoms, n_rows]))
        self.atoms.system.copy_(torch.arange(n_rows, device=device) >= n_atoms)
        self.neighbors.n_own.fill_(part.n_own)
        systems = Systems.of(
            self.model.parameters,
            to_tensor(numbers, device),
            self._charge,
            self.atoms.system_ptr,
            torch.tensor([part.n_total, 1], device=device),
        )
        systems.offsets[part.n_own :] = 0
        if part.limits is not None:
            self.neighbors.watch(part.limits)
        self._own_ptr[1:] = part.n_own  # padding is a system without atoms
        self._set_systems(systems)
        if self._borders is not None and self._borders.set_part(self.model.parameters, part):
            self.neighbors.layout += 1
            self._is_built = False  # because rows of other parts need rows, too
        self.expire()
        if is_wasteful(self.neighbors.sizes[0], reserved(part.n_own)):
            self._is_built = False  # so that shells get other sizes

    def _sort(self) -> None:
        super()._sort()
        if self._borders is not None:
            assert self._sorted is not None
            first = self.neighbors.sizes[0]
            self._borders.sort(self.neighbors.matrix.rank, self._sorted.species, first)

    def launch(self) -> Outputs:
        """Launch the kernels of a step, without an exchange; a matrix must have been built."""
        self.launch_edges()
        return self.rehearse()

    def launch_edges(self) -> Tensor:
        """Launch the kernel that finds the edges, and return the highest status of any atom, []."""
        self._geometry = self._find_edges()
        return self.status.max()

    def launch_network(self) -> tuple[Outputs, Tensor]:
        """Launch the kernels of the network, with the edges that were found last.

        Returns
        -------
        Outputs
            Contribution of this part.
        float64 [N, 3]
            Its forces; if the exchange is queued, the sums of all parts for own atoms.
        """
        return self._launch_network(self._borders)

    def rehearse(self) -> Outputs:
        """Do the same, but leave out the values that other processes would send."""
        return self._launch_network(None if self._borders is None else self._borders.alone)[0]

    def _launch_network(
        self, borders: DeviceBorders | AloneBorders | None
    ) -> tuple[Outputs, Tensor]:
        assert self._sorted is not None
        model, near = self.model, self._geometry.near
        if model.parameters.charges is None:
            given = model.operators, model.parameters, self._sorted, near, self.status
            outputs = evaluate_part(*given, self.neighbors.rows, borders)
        else:
            assert borders is not None
            outputs = self._launch_charged(self._sorted, borders)
        if borders is None or not self.sums_forces:
            return outputs, outputs.forces
        return outputs, borders.sum_forces(outputs.forces)

    def _launch_charged(self, systems: Systems, borders: DeviceBorders | AloneBorders) -> Outputs:
        """Launch the kernels of a TensorNet2."""
        operators = Operators(self.model.operators, self.model.charged_operators, channel_sums)
        own = replace(systems, system_ptr=self._own_ptr)
        mesh = None if self._plan is None else self._plan.in_cells(self._cell)
        geometry = self._geometry._replace(mesh=mesh)
        given = operators, self.model.parameters, own, geometry, self.neighbors.sizes[0]
        forces, atoms, uncertainty = evaluate_charged_part(*given, borders)
        totals = self.model.operators.totals(atoms, self.status, systems.system_ptr)
        return Outputs(Totals(totals), forces, atoms, None, uncertainty)

    @property
    def is_queued(self) -> bool:
        """True if CUDA graphs may contain the network."""
        return self._borders is None or self._borders.is_queued

    @property
    def sums_forces(self) -> bool:
        """True if forces on own atoms are sums over all parts."""
        return self._borders is not None and self._borders.is_queued


class PartBuffers:
    """Steps of parts up to a number of atoms: uploaded, computed on the GPU, and downloaded.

    Parameters
    ----------
    model : DeviceModel
        The model, on the GPU.
    n_rows : int
        Number of atoms and padding.
    charge : float
        Total charge of the whole system in elementary charges.
    exchanges : bool
        True if processes exchange tensors.
    """

    def __init__(self, model: DeviceModel, n_rows: int, charge: float, *, exchanges: bool) -> None:
        self.n_rows, self.exchanges = n_rows, exchanges
        self._state = PartState(model, n_rows, charge, exchanges=exchanges)
        self._look: StepGraph[Tensor] = StepGraph(model.pool)
        self._round_trip: StepGraph[Outputs] = StepGraph(model.pool)
        self._padding = _far_apart(n_rows, 2 * self._state.neighbors.radius)
        self._staging = pinned(model.device, n_rows, 3)
        self._status = pinned(model.device, dtype=torch.int32)
        self._totals = Totals(pinned(model.device, 2, WIDTH))
        self._forces = pinned(model.device, n_rows, 3)
        self._energies = pinned(model.device, n_rows)
        knows = model.parameters.has_uncertainty
        self._uncertainty = pinned(model.device, n_rows, dtype=model.dtype) if knows else None

    def set_part(self, part: PartAtoms) -> None:
        """Upload other atoms; see `PartState.set_part`."""
        self._state.set_part(part)
        self._part = part
        n_atoms = len(part.numbers)
        self._staging.numpy()[n_atoms:] = self._padding[n_atoms:]

    def set_mesh(self, plan: MeshPlan, box: Box) -> None:
        """Upload the cell of a mesh; see `PartState.set_mesh`."""
        self._state.set_mesh(plan, box)

    def step(self, positions: FloatArray, *, per_atom: bool) -> PartPrediction:
        """Run a step; see `mlff_triton.engine.part.PartStep.step`."""
        n_atoms = len(positions)
        self._staging.numpy()[:n_atoms] = positions
        if self._state.is_due:  # the matrix is built before the step uploads positions
            check_positions(positions)  # because a new matrix cannot say what is wrong
            self._upload()
        self._state.settle(self._find_edges)
        outputs = self._compute()
        virials = virials_of(outputs.atoms[1:, :n_atoms].cpu()) if per_atom else None
        if per_atom and self._state.sums_forces:
            forces = outputs.forces[:n_atoms].cpu().numpy()
        else:
            n_rows = self._part.n_own if self._state.sums_forces else n_atoms
            forces = self._forces.numpy()[:n_rows]
        known = self._uncertainty
        return PartPrediction(
            energy=float(self._totals.energy[0]),
            forces=forces,
            virial=self._totals.virial[0].numpy().copy(),
            atom_energies=self._energies.numpy()[: self._part.n_own],
            atom_virials=virials,
            uncertainty=None if known is None else own_errors(known, self._part),
            has_contacts=self._state.has_contacts,
        )

    def _find_edges(self) -> int:
        """Upload positions, find the edges, and return the highest status of any atom."""
        self._look.run(self._launch_edges, self._state.neighbors.layout)
        self._state.wait()
        return int(self._status)

    def _launch_edges(self) -> Tensor:
        self._upload()
        return self._status.copy_(self._state.launch_edges(), non_blocking=True)

    def _compute(self) -> Outputs:
        """Compute the network, and download the results."""
        state, layout = self._state, self._state.neighbors.layout
        if state.is_queued:
            outputs = self._round_trip.run(self._launch_network, layout, state.rehearse)
        else:
            outputs = self._launch_network()
        state.wait()
        return outputs

    def _launch_network(self) -> Outputs:
        """Launch network and downloads in one graph, because calls cost more than small copies."""
        outputs, forces = self._state.launch_network()
        self._totals.values.copy_(outputs.totals.values, non_blocking=True)
        self._forces.copy_(forces, non_blocking=True)
        self._energies.copy_(outputs.atom_energies, non_blocking=True)
        if self._uncertainty is not None and outputs.uncertainty is not None:
            self._uncertainty.copy_(outputs.uncertainty, non_blocking=True)
        return outputs

    def _upload(self) -> None:
        self._state.atoms.positions.copy_(self._staging, non_blocking=True)


class DevicePart:
    """Steps of one model for one part on a GPU; see `mlff_triton.engine.part.PartStep`.

    Parameters
    ----------
    model : DeviceModel
        The model, on the GPU.
    charge : float
        Total charge of the whole system in elementary charges.
    on_gpu : callable
        Returns a context in which atoms are computed.
    """

    def __init__(
        self,
        model: DeviceModel,
        charge: float,
        on_gpu: Callable[[PartAtoms], AbstractContextManager[None]],
    ) -> None:
        self._model = model
        self._charge = charge
        self._on_gpu = on_gpu
        self._buffers: PartBuffers | None = None
        self._part: PartAtoms | None = None  # those in the buffers
        choice = model.parameters.mesh_choice
        self._mesh = None if choice is None else PartMesh(choice, model.device)

    def set_atoms(self, atoms: PartAtoms) -> None:
        """Replace all atoms, in the same buffers if those have enough rows, but not too many."""
        n_atoms, self._part = len(atoms.numbers), None
        exchanges, n_shells = atoms.exchange is not None, 1
        if atoms.exchange is None:
            n_shells += self._model.parameters.config.num_layers
        else:
            n_atoms = max(n_atoms, atoms.exchange.n_rows)
        least = reserved(n_atoms) + ALIGNMENT * (n_shells + 1)
        with self._on_gpu(atoms):
            if not self._fits(least, exchanges=exchanges):
                self._buffers = None  # before others are allocated
                size = reserved(least, 8)
                self._buffers = PartBuffers(self._model, size, self._charge, exchanges=exchanges)
            assert self._buffers is not None
            self._buffers.set_part(atoms)
        if self._mesh is not None:
            self._mesh.forget_atoms()
        self._part = atoms

    def _fits(self, least: int, *, exchanges: bool) -> bool:
        """Return True if the buffers are of this kind and have enough rows, but not too many."""
        buffers = self._buffers
        if buffers is None or buffers.exchanges != exchanges:
            return False
        return least <= buffers.n_rows <= 2 * least

    def step(
        self, positions: FloatArray, *, per_atom: bool, box: Box | None = None
    ) -> PartPrediction:
        """Compute the current atoms, at least one of them own, in Å and eV."""
        assert self._buffers is not None
        assert self._part is not None  # as `set_atoms` precedes everything else
        with self._on_gpu(self._part):
            if self._mesh is not None:
                assert self._part.exchange is not None
                assert box is not None
                own, gather = positions[: self._part.n_own], self._part.exchange.gather
                self._buffers.set_mesh(self._mesh.update(own, box, gather), box)
            return self._buffers.step(positions, per_atom=per_atom)


def _far_apart(n_points: int, distance: float) -> FloatArray:
    """Return the points of a cubic lattice, float64 [n_points, 3]."""
    side = 1
    while side**3 < n_points:
        side += 1
    index = np.arange(n_points)
    return distance * np.stack([index % side, index // side % side, index // side**2], axis=1)
