"""The padded neighbor matrix of a batch, built on the GPU."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mlff_triton._common.cuda_graphs import GraphPool
from mlff_triton.engine.batch import Batch, to_tensor
from mlff_triton.engine.parameters import Parameters
from mlff_triton.errors import InputError
from mlff_triton.kernels.neighbors.bins import Boxes
from mlff_triton.kernels.neighbors.edges import edges
from mlff_triton.kernels.neighbors.neighbor_list import MAX_CAPACITY, fill_rows
from mlff_triton.kernels.tensornet.protocol import StepOperators
from mlff_triton.kernels.tensornet2.protocol import ChargedOperators
from mlff_triton.kernels.types.edges import Edges, Knots
from mlff_triton.kernels.types.neighbor_matrix import MAX_REACH, NeighborMatrix
from mlff_triton.neighbors.box import Box, FloatArray
from mlff_triton.neighbors.verlet_list import automatic_skin

LIQUID = 0.12  # atoms/Å^3: largest density of neighbors of an atom in water


def neighbors_in_liquid(radius: float) -> int:
    """Return the number of neighbors of an atom in water within a radius in Å."""
    return int(LIQUID * 4 / 3 * math.pi * radius**3)


class Capacity(NamedTuple):
    """Slots per atom in a neighbor matrix.

    Attributes
    ----------
    first : int or None
        Slots before the number of neighbors is known; by default, enough for a liquid.
    multiple : int
        Larger capacities are multiples of this, because kernels are compiled for each capacity.
    """

    first: int | None = None
    multiple: int = 32

    def before(self, n_atoms: int, radius: float) -> int:
        """Return the capacity before the number of neighbors is known."""
        if self.first is not None:
            return self.first
        expected = max(min(n_atoms - 1, neighbors_in_liquid(radius)), 1)
        return min(self.for_neighbors(expected), MAX_CAPACITY)

    def for_neighbors(self, needed: int) -> int:
        """Return the capacity for a maximum number of neighbors, with a reserve of an eighth."""
        return -(-(needed + needed // 8) // self.multiple) * self.multiple


@dataclass
class DeviceModel:
    """A model on a GPU, with everything that its states share.

    Attributes
    ----------
    parameters : Parameters
        The model, on the GPU.
    operators : StepOperators
        Operators that compute the network.
    charged_operators : ChargedOperators
        Operators that only a TensorNet2 needs.
    cutoff : float
        Cutoff in Å of the neighbor matrix.
    skin : float or None
        Å; None to choose it from the number of atoms.
    device : torch.device
        The GPU.
    dtype : torch.dtype
        Precision of the network.
    capacity : Capacity
        Slots per atom.
    pool : GraphPool or None
        Memory of CUDA graphs; None to launch kernels one by one.
    n_builds : int
        Number of neighbor matrices built so far.
    """

    parameters: Parameters
    operators: StepOperators
    charged_operators: ChargedOperators
    cutoff: float
    skin: float | None
    device: torch.device
    dtype: torch.dtype
    capacity: Capacity
    pool: GraphPool | None
    n_builds: int = 0

    def radius(self, n_atoms: int) -> float:
        """Return the radius of the neighbor matrix for a number of atoms, in Å."""
        return self.cutoff + (automatic_skin(n_atoms) if self.skin is None else self.skin)


@dataclass(frozen=True)
class AtomBuffers:
    """Positions and cells of N atoms in B systems, at fixed addresses on the GPU.

    Attributes
    ----------
    positions : float64 [N, 3]
        Å.
    cell : float64 [B, 3, 3]
        Lattice vectors (rows) in Å.
    pbc : uint8 [B, 3]
        1 in periodic directions.
    system : int32 [N]
        System of each atom.
    system_ptr : int32 [B + 1]
        First atom of each system.
    """

    positions: Tensor
    cell: Tensor
    pbc: Tensor
    system: Tensor
    system_ptr: Tensor

    @classmethod
    def zeros(cls, n_atoms: int, n_systems: int, device: torch.device) -> AtomBuffers:
        """Allocate buffers."""
        return cls(
            positions=torch.zeros(n_atoms, 3, dtype=torch.float64, device=device),
            cell=torch.zeros(n_systems, 3, 3, dtype=torch.float64, device=device),
            pbc=torch.zeros(n_systems, 3, dtype=torch.uint8, device=device),
            system=torch.zeros(n_atoms, dtype=torch.int32, device=device),
            system_ptr=torch.zeros(n_systems + 1, dtype=torch.int32, device=device),
        )

    def upload_systems(self, batch: Batch) -> None:
        """Copy the division of atoms into systems to the GPU."""
        self.system.copy_(to_tensor(batch.system, self.system.device))
        self.system_ptr.copy_(to_tensor(batch.system_ptr, self.system.device))

    def upload_boxes(self, boxes: tuple[Box, ...]) -> None:
        """Copy the cells of all systems and their periodic directions to the GPU."""
        device = self.cell.device
        self.cell.copy_(to_tensor(np.stack([box.cell for box in boxes]), device))
        self.pbc.copy_(to_tensor(np.stack([box.pbc for box in boxes]), device))

    @property
    def boxes(self) -> Boxes:
        """Cells and ranges of atoms, as kernels read them."""
        return Boxes(self.cell, self.pbc, self.system_ptr)


class DeviceNeighbors:
    """The neighbor matrices of a batch: one, or two if a Coulomb energy reaches farther.

    All tensors keep their addresses, so that captured graphs can read and write them, until a
    matrix needs more slots. `layout` counts these occasions.

    Parameters
    ----------
    model : DeviceModel
        Cutoffs, skin and capacity.
    atoms : AtomBuffers
        The atoms.

    Attributes
    ----------
    limits : float64 [N] or None
        Length of each atom in Å, from `watch`: see `edges`.
    """

    names: Tensor | None = None  # names of atoms as senders: see `edges`

    def __init__(self, model: DeviceModel, atoms: AtomBuffers) -> None:
        self.layout = 0
        self.limits: Tensor | None = None
        self._model = model
        self._atoms = atoms
        n_atoms, charges = len(atoms.positions), model.parameters.charges
        self.radius = model.radius(n_atoms)
        self._cutoffs = [model.cutoff]
        if charges is not None and charges.network_cutoff < model.cutoff:
            self._cutoffs.append(charges.network_cutoff)
        self._radii = [self.radius - model.cutoff + cutoff for cutoff in self._cutoffs]
        self._allocate([model.capacity.before(n_atoms, radius) for radius in self._radii])

    def _allocate(self, capacities: list[int]) -> None:
        """Replace the matrices that the search fills and the step reads."""
        size = len(self._atoms.positions), len(self._atoms.cell)
        self._found = NeighborMatrix.empty(*size, capacities[0], self._model.device)
        self._short = [self._found.shorter(capacity) for capacity in capacities[1:]]
        self._read = [self._found, *self._short]

    @property
    def matrix(self) -> NeighborMatrix:
        """The longest matrix that steps read."""
        return self._read[0]

    @property
    def capacities(self) -> list[int]:
        """Slots per atom in each matrix, the longest first."""
        return [rows.capacity for rows in (self._found, *self._short)]

    @property
    def needed(self) -> Tensor:
        """Slots per atom that each matrix needs, int32 [1 or 2]."""
        return torch.stack([rows.needed for rows in (self._found, *self._short)])

    def launch(self, wanted: Tensor | None = None) -> None:
        """Launch the kernels that build the matrices, unless a flag on the GPU, int32 [], is 0."""
        given = self._atoms.positions, self._atoms.system, self._atoms.boxes
        shorter = (self._short[0], self._radii[1]) if self._short else None
        fill_rows(self._found, *given, self.radius, wanted=wanted, shorter=shorter)

    def fit(self) -> None:
        """Build the matrices with as many slots as they need; this waits for the GPU.

        Raises
        ------
        InputError
            If atoms lie too far outside their cell, or have too many neighbors.
        """
        while True:
            self.launch()
            reach, *needed = torch.cat([self._found.reach[None], self.needed]).tolist()
            if reach > MAX_REACH:
                raise InputError(
                    "atoms lie too far outside their cell, or are not finite: wrap them into it, "
                    "or the simulation may have blown up"
                )
            if all(n <= slots for n, slots in zip(needed, self.capacities, strict=True)):
                return
            self.grow(needed)

    def grow(self, needed: list[int]) -> None:
        """Replace the matrices by empty ones, still to be built, for more neighbors per atom.

        Raises
        ------
        InputError
            If there are too many.
        """
        capacities = [
            slots if n < slots else self._model.capacity.for_neighbors(n)
            for n, slots in zip(needed, self.capacities, strict=True)
        ]
        for n, slots, radius in zip(needed, capacities, self._radii, strict=True):
            if slots > MAX_CAPACITY:
                raise InputError(
                    f"an atom has {n} neighbors within {radius:g} Å, more than "
                    f"{MAX_CAPACITY}: check the units of positions and cell, or use a smaller skin"
                )
        self._allocate(capacities)
        self.layout += 1

    def watch(self, limits: FloatArray) -> None:
        """Let the status report contacts, by the lengths of the first atoms in Å."""
        if self.limits is None:
            self.limits = self._atoms.positions.new_zeros(len(self._atoms.positions))
            self.layout += 1
        self.limits.zero_()
        self.limits[: len(limits)] = torch.from_numpy(limits)

    def edges(self) -> tuple[Edges, Tensor]:
        """Launch the kernel that finds the edges of the network and the status of each atom."""
        return self._edges(-1, self._model.parameters.tables.knots, None)

    def far_edges(self, status: Tensor) -> tuple[Edges, Tensor]:
        """Do the same for the edges of the longest cutoff, without their position in tables.

        The status is joined with that of `edges`.
        """
        return self._edges(0, None, status)

    def _edges(
        self, index: int, knots: Knots | None, status: Tensor | None
    ) -> tuple[Edges, Tensor]:
        model, atoms = self._model, self._atoms
        return edges(
            atoms.positions,
            atoms.cell,
            atoms.system,
            self._read[index],
            knots,
            self._cutoffs[index],
            self._radii[index],
            model.dtype,
            rows_ascend=self.matrix is self._found,
            others=status,
            names=self.names,
            limits=None if knots is None else self.limits,
        )

    @property
    def has_far_edges(self) -> bool:
        """True if there is a matrix for a cutoff longer than that of the network."""
        return bool(self._short)
