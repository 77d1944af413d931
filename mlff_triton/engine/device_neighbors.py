"""The padded neighbor matrix of a batch on a GPU, and the limits within which it holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mlff_triton.engine.batch import Batch, to_tensor
from mlff_triton.engine.parameters import Parameters
from mlff_triton.errors import InputError
from mlff_triton.kernels.neighbors.edges import edges
from mlff_triton.kernels.neighbors.neighbor_list import build_rows
from mlff_triton.kernels.tensornet.protocol import StepOperators
from mlff_triton.kernels.types.edges import Edges
from mlff_triton.kernels.types.neighbor_matrix import MAX_REACH, NeighborMatrix
from mlff_triton.neighbors.box import Box, check_box, deformation

MARGIN = 1e-6  # Å; subtracted from the distance that atoms may move, against rounding


class Capacity(NamedTuple):
    """Slots per atom in a neighbor matrix.

    Attributes
    ----------
    first : int
        Slots before the number of neighbors is known.
    multiple : int
        Larger capacities are multiples of this, as kernels are compiled for each of them.
    """

    first: int = 64
    multiple: int = 16

    def for_neighbors(self, needed: int) -> int:
        """Return the capacity for a maximum number of neighbors, with a reserve of 1/16."""
        return -(-(needed + needed // 16) // self.multiple) * self.multiple


@dataclass
class DeviceModel:
    """A model on a GPU, and what all of its states share.

    Attributes
    ----------
    parameters : Parameters
        The model, on the GPU.
    operators : StepOperators
        Operators that compute the network.
    cutoff, skin : float
        Å.
    device : torch.device
        The GPU.
    dtype : torch.dtype
        Precision of the network.
    capacity : Capacity
        Slots per atom.
    pool : tuple of int or None
        Memory pool of CUDA graphs; None to launch kernels one by one.
    n_builds : int
        Number of neighbor matrices built so far.
    """

    parameters: Parameters
    operators: StepOperators
    cutoff: float
    skin: float
    device: torch.device
    dtype: torch.dtype
    capacity: Capacity
    pool: tuple[int, int] | None
    n_builds: int = 0


@dataclass(frozen=True)
class AtomBuffers:
    """Positions and cells of N atoms in B systems, at fixed addresses on the GPU.

    Attributes
    ----------
    positions : float64 [N, 3]
        Å.
    cell : float64 [B, 3, 3]
        Lattice vectors (rows) in Å.
    system : int32 [N]
        System of each atom.
    system_ptr : int32 [B + 1]
        First atom of each system.
    """

    positions: Tensor
    cell: Tensor
    system: Tensor
    system_ptr: Tensor

    @classmethod
    def zeros(cls, n_atoms: int, n_systems: int, device: torch.device) -> AtomBuffers:
        """Allocate buffers."""
        return cls(
            positions=torch.zeros(n_atoms, 3, dtype=torch.float64, device=device),
            cell=torch.zeros(n_systems, 3, 3, dtype=torch.float64, device=device),
            system=torch.zeros(n_atoms, dtype=torch.int32, device=device),
            system_ptr=torch.zeros(n_systems + 1, dtype=torch.int32, device=device),
        )

    def upload_systems(self, batch: Batch) -> None:
        """Copy the division of atoms into systems to the GPU."""
        self.system.copy_(to_tensor(batch.system, self.system.device))
        self.system_ptr.copy_(to_tensor(batch.system_ptr, self.system.device))

    def upload_cells(self, boxes: tuple[Box, ...]) -> None:
        """Copy the cells of all systems to the GPU."""
        self.cell.copy_(to_tensor(np.stack([box.cell for box in boxes]), self.cell.device))


class DeviceNeighbors:
    """The neighbor matrix of a batch, and how far atoms and cells may move before it is stale.

    All tensors keep their addresses, so that a captured graph can read them, until the matrix needs
    more slots. `layout` counts these occasions.

    Parameters
    ----------
    model : DeviceModel
        Cutoff, skin and capacity.
    atoms : AtomBuffers
        The atoms.
    """

    def __init__(self, model: DeviceModel, atoms: AtomBuffers) -> None:
        self.layout = 0
        self._model = model
        self._atoms = atoms
        self._matrix: NeighborMatrix | None = None
        self._boxes: tuple[Box, ...] = ()  # at the last build; empty unless the matrix is valid
        self._built = torch.zeros_like(atoms.positions)  # positions at the last build
        self._strain = torch.zeros_like(atoms.cell)  # maps cells of the last build to current ones
        self._limit = atoms.cell.new_zeros(len(atoms.cell))  # distance that atoms may move, Å

    @property
    def is_built(self) -> bool:
        """True if there is a matrix for these atoms, which may be stale."""
        return bool(self._boxes)

    @property
    def order(self) -> Tensor:
        """The user's index of each atom in the order of the matrix, int32 [N]."""
        return self._current.order

    @property
    def capacity(self) -> int:
        """Slots per atom."""
        return self._current.senders.shape[1]

    @property
    def _current(self) -> NeighborMatrix:
        assert self._matrix is not None  # as `keep` precedes every step
        return self._matrix

    def discard(self) -> None:
        """Require a new matrix, as the atoms are different ones."""
        self._boxes = ()

    def find(self, batch: Batch) -> NeighborMatrix:
        """Build a matrix for the current positions, without keeping it.

        Raises
        ------
        InputError
            If a cell is far too small, or atoms lie too far outside theirs.
        """
        model, atoms = self._model, self._atoms
        radius = model.cutoff + model.skin
        for box, count in zip(batch.boxes, batch.counts.tolist(), strict=True):
            check_box(count, box, radius)
        pbc = to_tensor(np.stack([box.pbc for box in batch.boxes]), model.device)
        system = atoms.system.long()
        capacity = model.capacity.first if self._matrix is None else self.capacity
        while True:
            matrix = build_rows(atoms.positions, atoms.cell, pbc, system, radius, capacity)
            needed, reach = torch.stack([matrix.needed, matrix.reach]).tolist()
            if reach > MAX_REACH:
                raise InputError(
                    "atoms lie too far outside their cell, or are not finite: wrap them into it, "
                    "or the simulation may have blown up"
                )
            if needed <= capacity:
                model.n_builds += 1
                return matrix
            capacity = model.capacity.for_neighbors(needed)

    def keep(self, matrix: NeighborMatrix, boxes: tuple[Box, ...]) -> None:
        """Use a matrix, built for the current positions and these boxes, from now on."""
        if self._matrix is None or self._matrix.senders.shape != matrix.senders.shape:
            self._matrix = matrix
            self.layout += 1
        else:
            copy_fields(matrix, self._matrix)
        self._built.copy_(self._atoms.positions)
        self._boxes = boxes
        self.set_limits(boxes)

    def set_limits(self, boxes: tuple[Box, ...]) -> None:
        """Limit how far atoms may move in these boxes before a pair could be missed."""
        model = self._model
        strains, limits = np.empty((len(boxes), 3, 3)), np.empty(len(boxes))
        for k, (old, new) in enumerate(zip(self._boxes, boxes, strict=True)):
            if (old.pbc != new.pbc).any():
                strain, sigma = np.eye(3), 0.0  # other images: the matrix is stale at once
            else:
                strain, sigma = deformation(old, new)
            reach = sigma * (model.cutoff + model.skin) - model.cutoff
            strains[k], limits[k] = strain, reach / 2 - MARGIN
        self._strain.copy_(to_tensor(strains, model.device))
        self._limit.copy_(to_tensor(limits, model.device))

    def edges(self) -> tuple[Edges, Tensor]:
        """Launch the kernel that finds the current edges and the status of each atom."""
        model, atoms = self._model, self._atoms
        return edges(
            atoms.positions,
            self._built,
            atoms.cell,
            self._strain,
            self._limit,
            atoms.system,
            self._current,
            model.parameters.tables.knots,
            model.cutoff,
            model.dtype,
        )


def copy_fields(source: object, target: object) -> None:
    """Copy all tensors of a dataclass to those of another one of the same shapes."""
    for old, new in zip(vars(target).values(), vars(source).values(), strict=True):
        old.copy_(new)
