"""The sum over waves of particle-mesh Ewald in a step of the engine, and the choice of its mesh."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mlff_triton.engine.batch import Batch
from mlff_triton.engine.charge_parameters import CoulombWeights
from mlff_triton.errors import InputError
from mlff_triton.kernels.electrostatics.reference.systems import unit_normals
from mlff_triton.kernels.electrostatics.types import ChannelSums, PMEParameters
from mlff_triton.kernels.types.charges import CoulombSums, SumParts
from mlff_triton.model.config import TensorNet2Config
from mlff_triton.model.mesh_coulomb import (
    check_mesh_box,
    least_height,
    mesh_parameters,
    roomy,
    slab_cells,
    slab_of,
)
from mlff_triton.neighbors.box import Box, FloatArray

MeshOperator = Callable[
    [Tensor, Tensor, Tensor, Tensor, Tensor, PMEParameters, SumParts | None], ChannelSums
]
"""`channel_sums` in `mlff_triton.kernels.electrostatics.charge_channels` or its reference."""
STRETCH = 1.1
"""Factor by which a barostat may stretch cells with the same mesh; errors grow by a half."""

MOST_POINTS = 4
"""Largest ratio of the points of a mesh that is kept to those of a newly chosen mesh."""


class Mesh(NamedTuple):
    """Cells, and the mesh of the charges in each.

    Attributes
    ----------
    cell : float64 [B, 3, 3]
        Lattice vectors (rows) in Å.
    parameters : PMEParameters
        Splitting, mesh and order.
    """

    cell: Tensor
    parameters: PMEParameters


class MeshPlan(NamedTuple):
    """The mesh that is chosen for the cells of a batch.

    Attributes
    ----------
    parameters : PMEParameters
        Splitting, mesh, order, and the direction in which systems are slabs.
    height : float
        Height in Å of the cells of slabs; otherwise 0.
    """

    parameters: PMEParameters
    height: float = 0.0

    def in_cells(self, cell: Tensor) -> Mesh:
        """Return the mesh in cells, float64 [B, 3, 3]."""
        slab = self.parameters.slab
        return Mesh(cell if slab is None else slab_cells(cell, slab, self.height), self.parameters)

    def serves(self, wanted: MeshPlan) -> bool:
        """Return True if this mesh is as fine as another one, and not much finer."""
        points, fewest = (math.prod(plan.parameters.mesh) for plan in (self, wanted))
        return self.is_as_fine(wanted) and points <= MOST_POINTS * fewest

    def is_as_fine(self, other: MeshPlan) -> bool:
        """Return True if this mesh has at least as many points in each direction as another one."""
        pairs = zip(self.parameters.mesh, other.parameters.mesh, strict=True)
        return self.parameters.slab == other.parameters.slab and all(n >= k for n, k in pairs)


class MeshRows(NamedTuple):
    """Rows of charges, as in `mlff_triton.engine.step.Systems`.

    Attributes
    ----------
    order : int32 [N or more]
        The user's index of each row, and perhaps of others that follow.
    system : int32 [N]
        System of each row, ascending. Rows of systems that have no mesh are padding.
    system_ptr : int32 [B + 1]
        First atom of each system, in the user's order.
    """

    order: Tensor
    system: Tensor
    system_ptr: Tensor


class MeshChoice:
    """The mesh of a batch, which stays the same while cells change little.

    A new mesh is chosen for new atoms, when a cell has grown so much that the error would exceed
    the model's ``pme_error``, when a slab is too thick for its cell, and when cells have shrunk so
    much that the mesh wastes `MOST_POINTS`. So energies do not jump as cells fluctuate, and a
    captured step is rarely captured again.

    Parameters
    ----------
    config : TensorNet2Config
        A model with a ``pme_error``.
    """

    def __init__(self, config: TensorNet2Config) -> None:
        self._config = config
        self._chosen: MeshPlan | None = None

    def update(self, batch: Batch, *, is_new: bool) -> tuple[MeshPlan, bool]:
        """Return the mesh for the cells of a batch, and True if it differs from the last one.

        Parameters
        ----------
        batch : Batch
            The systems.
        is_new : bool
            True if the atoms differ from those before.

        Raises
        ------
        InputError
            If systems are periodic in different directions, or the mesh would be too large.
        """
        last, slab = self._chosen, slab_of(batch.boxes)
        least = self._least_height(batch, slab)
        wanted = self._plan(batch, slab, roomy(least) if least else 0.0)
        if last is not None and not is_new and last.height >= least and last.serves(wanted):
            return last, False
        self._chosen = wanted
        return wanted, wanted != last

    def check(self, batch: Batch) -> None:
        """Raise `InputError` if a run has stretched cells or slabs too far for the mesh."""
        assert self._chosen is not None
        slab = slab_of(batch.boxes)
        boxes = tuple(replace(box, cell=box.cell / STRETCH) for box in batch.boxes)
        shrunk = self._plan(replace(batch, boxes=boxes), slab, self._chosen.height)
        if not self._chosen.is_as_fine(shrunk):
            raise InputError(
                "the barostat has stretched the cell by a tenth or more, too far for the mesh of "
                "particle-mesh Ewald: continue from the last state, for which another one is chosen"
            )
        if self._chosen.height < self._least_height(batch, slab):
            raise InputError(
                "the slab has become too thick for the mesh of particle-mesh Ewald: see whether "
                "atoms have left it, or continue from the last state, for which another mesh is "
                "chosen"
            )

    def _least_height(self, batch: Batch, slab: int | None) -> float:
        """Return the least height in Å that the cells of slabs need; 0 without slabs."""
        if slab is None:
            return 0.0
        positions, system = map(torch.from_numpy, (batch.positions, batch.system))
        return least_height(self._config, positions, _cells(batch), system, slab)

    def _plan(self, batch: Batch, slab: int | None, height: float) -> MeshPlan:
        cells = _cells(batch)
        if slab is not None:
            cells = slab_cells(cells, slab, height)
        return MeshPlan(mesh_parameters(self._config, cells, slab), height)


class PartMesh:
    """The mesh of a system that is divided into parts, on which all parts agree.

    Parts without atoms compute no steps, so they may have seen other cells. Whenever atoms are
    replaced, the parts compare their meshes, and choose another one unless all have the same.

    Parameters
    ----------
    choice : MeshChoice
        The choice of this part.
    device : torch.device
        Device of the tensors that parts exchange.
    """

    def __init__(self, choice: MeshChoice, device: torch.device) -> None:
        self._choice, self._device = choice, device
        self._box: Box | None = None
        self._plan: MeshPlan | None = None

    def forget_atoms(self) -> None:
        """Have the parts compare their meshes in the next step; all parts call this together."""
        self._box = None

    def update(
        self, positions: FloatArray, box: Box, gather: Callable[[Tensor], list[Tensor]]
    ) -> MeshPlan:
        """Return the mesh for a cell.

        All parts with atoms call this together.

        Parameters
        ----------
        positions : float64 [n_own, 3]
            Own atoms, Å.
        box : Box
            Cell of the whole system.
        gather : callable
            Function that returns the tensors of all parts with atoms, in the same order on each.

        Raises
        ------
        InputError
            On all parts, as `MeshChoice.update`, and if the box is periodic in fewer than two
            directions.
        """
        check_mesh_box(box)
        if self._plan is not None and box.pbc.all() and _is_same(self._box, box):
            return self._plan
        last = self._plan
        facts = [0, 0, 0, 0] if last is None else [*last.parameters.mesh, last.height]
        known = np.concatenate([facts, *_ends(positions, box)])
        found = gather(torch.from_numpy(known).to(self._device))
        every = torch.stack(found).cpu()
        is_same = bool((every[:, :4] == every[0, :4]).all())
        ends = every[:, 4:].reshape(-1, 3).numpy()
        n_ends = np.zeros(len(ends), dtype=np.int64)
        batch = Batch(n_ends, ends, (box,), n_ends, np.zeros(1))
        self._plan, _ = self._choice.update(batch, is_new=not is_same)
        self._box = box
        return self._plan


def _is_same(last: Box | None, box: Box) -> bool:
    return last is not None and bool((last.cell == box.cell).all() and (last.pbc == box.pbc).all())


def _ends(positions: FloatArray, box: Box) -> FloatArray:
    """Return the lowest and the highest position [2, 3] in a slab, or zeros in other boxes."""
    slab = slab_of((box,))
    if slab is None:
        return np.zeros((2, 3))
    (normal,) = unit_normals(torch.from_numpy(box.cell)[None], slab).numpy()
    z = positions @ normal
    ends: FloatArray = positions[[z.argmin(), z.argmax()]]
    return ends


def _cells(batch: Batch) -> Tensor:
    return torch.from_numpy(np.stack([box.cell for box in batch.boxes]))


def with_waves(
    sums: CoulombSums,
    charges: Tensor,
    weights: CoulombWeights,
    positions: Tensor,
    mesh: Mesh,
    rows: MeshRows,
    operator: MeshOperator,
    sum_parts: SumParts | None = None,
) -> CoulombSums:
    """Add the sum over waves to the sum over pairs.

    Atoms share the virial equally.

    Parameters
    ----------
    sums : CoulombSums
        Energies of pairs, and their gradients.
    charges : [N, C]
        Charges of all layers, by row.
    weights : CoulombWeights
        Weights of the charges.
    positions : float64 [N or more, 3]
        In the user's order, Å.
    mesh : Mesh
        Cells and their mesh.
    rows : MeshRows
        Order and systems of the rows.
    operator : MeshOperator
        Kernels or plain PyTorch.
    sum_parts : callable, optional
        Function that sums values over all parts, if these are the charges of one part.
    """
    used, factors, n_systems = weights.used, weights.of_mesh, len(mesh.cell)
    atoms, system = rows.order[: len(charges)].long(), rows.system.clamp(max=n_systems - 1)
    own = charges.index_select(1, used)
    own = own.masked_fill((rows.system >= n_systems)[:, None], 0.0)
    given = positions.index_select(0, atoms), mesh.cell, system, mesh.parameters
    found = operator(own, factors, *given, sum_parts)

    potential = found.potential.double() * factors
    energies = 0.5 * (own.double() * potential).sum(1)
    counts = rows.system_ptr.diff()[:n_systems]
    if sum_parts is not None:
        counts = sum_parts(counts)
    shares = _voigt(found.virial) / counts.clamp(min=1)[:, None]
    of_atoms = torch.cat([energies[:, None], shares.index_select(0, system)], dim=1)
    return CoulombSums(
        sums.grad_charges.index_add(1, used, potential.to(charges.dtype)),
        sums.charges,
        sums.forces.index_add(0, atoms, -found.gradient),
        sums.atoms.index_add(1, atoms, of_atoms.T),
    )


def _voigt(virial: Tensor) -> Tensor:
    """Return the components xx, yy, zz, yz, xz and xy [B, 6] of tensors [B, 3, 3]."""
    both = (virial + virial.mT) / 2
    components = [both[:, i, j] for i, j in ((0, 0), (1, 1), (2, 2), (1, 2), (0, 2), (0, 1))]
    return torch.stack(components, dim=1)
