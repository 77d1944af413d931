"""The sum over waves of particle-mesh Ewald in a step of the engine, and the choice of its mesh."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mlff_triton.engine.charge_parameters import CoulombWeights
from mlff_triton.errors import InputError
from mlff_triton.kernels.electrostatics.types import ChannelSums, PMEParameters
from mlff_triton.kernels.types.charges import CoulombSums
from mlff_triton.model.config import TensorNet2Config
from mlff_triton.model.mesh_coulomb import mesh_parameters
from mlff_triton.neighbors.box import Box

MeshOperator = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, PMEParameters], ChannelSums]
"""`channel_sums` in `mlff_triton.kernels.electrostatics.charge_channels` or its reference."""
STRETCH = 1.1
"""Factor by which a barostat may stretch cells while their mesh stays: errors grow by a half."""

MOST_POINTS = 4
"""Largest ratio of the points of a mesh that is kept to those of one that would be chosen."""


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


class MeshOrder(NamedTuple):
    """Order of the rows of charges; all as in `mlff_triton.engine.step.Systems`.

    Attributes
    ----------
    order, rank : int32 [N]
        The user's index of each row, and the row of each of the user's atoms.
    system : int32 [N]
        System of each row.
    system_ptr : int32 [B + 1]
        First atom of each system, in the user's order.
    """

    order: Tensor
    rank: Tensor
    system: Tensor
    system_ptr: Tensor


class MeshChoice:
    """The mesh of a batch, which stays the same while cells change little.

    It is chosen anew for other atoms, where a cell has grown so much that the error would exceed
    the model's ``pme_error``, and where cells have shrunk so much that it wastes `MOST_POINTS`. So
    energies do not jump as cells fluctuate, and a captured step is rarely captured again.

    Parameters
    ----------
    config : TensorNet2Config
        A model with a ``pme_error``.
    """

    def __init__(self, config: TensorNet2Config) -> None:
        self._config = config
        self._chosen: PMEParameters | None = None

    def update(self, boxes: Sequence[Box], *, is_new: bool) -> tuple[PMEParameters, bool]:
        """Return the mesh for cells, and True if it differs from the last one.

        Parameters
        ----------
        boxes : sequence of Box
            Cell of each system.
        is_new : bool
            True if the atoms are others than before.
        """
        last, wanted = self._chosen, self._wanted(boxes)
        if last is not None and not is_new and _serves(last, wanted):
            return last, False
        self._chosen = wanted
        return wanted, wanted != last

    def check(self, boxes: Sequence[Box]) -> None:
        """Raise `InputError` if a barostat has stretched cells too far for the mesh."""
        assert self._chosen is not None
        shrunk = [replace(box, cell=box.cell / STRETCH) for box in boxes]
        if not _is_as_fine(self._chosen, self._wanted(shrunk)):
            raise InputError(
                "the barostat has stretched the cell by a tenth or more, too far for the mesh of "
                "particle-mesh Ewald: continue from the last state, for which another one is chosen"
            )

    def _wanted(self, boxes: Sequence[Box]) -> PMEParameters:
        return mesh_parameters(
            self._config, torch.from_numpy(np.stack([box.cell for box in boxes]))
        )


def _serves(mesh: PMEParameters, wanted: PMEParameters) -> bool:
    """Return True if a mesh is as fine as another one, and not much finer."""
    return _is_as_fine(mesh, wanted) and math.prod(mesh.mesh) <= MOST_POINTS * math.prod(
        wanted.mesh
    )


def _is_as_fine(mesh: PMEParameters, other: PMEParameters) -> bool:
    """Return True if a mesh has at least as many points in each direction as another one."""
    return all(n >= least for n, least in zip(mesh.mesh, other.mesh, strict=True))


def with_waves(
    sums: CoulombSums,
    charges: Tensor,
    weights: CoulombWeights,
    positions: Tensor,
    mesh: Mesh,
    rows: MeshOrder,
    operator: MeshOperator,
) -> CoulombSums:
    """Add the sum over waves to that over pairs.

    Parameters
    ----------
    sums : CoulombSums
        Energies of pairs, and their gradients.
    charges : [N, C]
        Charges of all layers, by row.
    weights : CoulombWeights
        Weights of the charges.
    positions : float64 [N, 3]
        In the user's order, Å.
    mesh : Mesh
        Cells and their mesh.
    rows : MeshOrder
        Order of the rows.
    operator : MeshOperator
        Kernels or plain PyTorch.
    """
    used, factors = weights.used, weights.of_mesh
    order, rank = rows.order.long(), rows.rank.long()
    system = rows.system.index_select(0, rank)
    own = charges.index_select(1, used).index_select(0, rank)
    found = operator(own, factors, positions, mesh.cell, system, mesh.parameters)

    potential = found.potential.double() * factors
    by_charge = torch.zeros_like(sums.grad_charges)
    by_charge.index_copy_(1, used, potential.index_select(0, order).to(charges.dtype))
    atoms = sums.atoms.clone()
    atoms[0] += 0.5 * (own.double() * potential).sum(1)
    counts = rows.system_ptr.diff().clamp(min=1)[:, None]
    atoms[1:] += (_voigt(found.virial) / counts).index_select(0, system).T
    return CoulombSums(
        sums.grad_charges + by_charge, sums.charges, sums.forces - found.gradient, atoms
    )


def _voigt(virial: Tensor) -> Tensor:
    """Return the components xx, yy, zz, yz, xz and xy [B, 6] of tensors [B, 3, 3]."""
    both = (virial + virial.mT) / 2
    components = [both[:, i, j] for i, j in ((0, 0), (1, 1), (2, 2), (1, 2), (0, 2), (0, 1))]
    return torch.stack(components, dim=1)
