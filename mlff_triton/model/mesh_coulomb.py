"""Coulomb energy of partial charges and all their periodic images, by particle-mesh Ewald.

The energy of pairs is that of `mlff_triton.model.coulomb.coulomb_energy` without a cutoff, summed
over all images: `mlff_triton.model.coulomb.ewald_energy` over pairs within the cutoff, and the sum
over waves here. Charged cells get a uniform background that neutralizes them. Systems that are
periodic in two directions are slabs in a cell with enough empty space, see `pme_energy`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mlff_triton._common.cuda_graphs import is_capturing
from mlff_triton.errors import InputError
from mlff_triton.kernels.electrostatics.parameters import pme_parameters
from mlff_triton.kernels.electrostatics.reference.charge_channels import channel_potentials
from mlff_triton.kernels.electrostatics.reference.systems import heights, unit_normals
from mlff_triton.kernels.electrostatics.types import COULOMB as MESH_COULOMB
from mlff_triton.kernels.electrostatics.types import PMEParameters
from mlff_triton.kernels.electrostatics.validity import check_values
from mlff_triton.model.config import TensorNet2Config
from mlff_triton.model.coulomb import COULOMB
from mlff_triton.model.tensornet import Frame
from mlff_triton.neighbors.box import Box

MOST_POINTS, MOST_IN_ALL = 1 << 27, 1 << 31
"""Largest numbers of mesh points of a cell, and of all cells and charges of an atom."""
STEP = 4.0
"""Steps in Å in which the cells of slabs grow, so that the height rarely changes."""
UNIT = COULOMB / MESH_COULOMB
"""Factor from energies of the mesh to those of the model, whose constants differ by rounding."""


class ChargedCellWarning(UserWarning):
    """The energy of a charged periodic cell includes a background that neutralizes it."""


def background(charge: float, *, slab: bool = False) -> str:
    """Return one line about the background of a charged cell, or about a charged slab."""
    if slab:
        return (
            f"each cell of the slab has the charge {charge:+g} e: its energy is that of a charged "
            "sheet without end, and depends on the size of the cell"
        )
    return (
        f"the cell has the charge {charge:+g} e: its energy includes a uniform background that "
        "neutralizes it, and depends on the size of the cell"
    )


def check_mesh_box(box: Box) -> None:
    """Raise `InputError` unless a box is periodic in three directions, or two as a slab."""
    if box.pbc.sum() >= 2:
        return
    if not box.pbc.any():
        raise InputError(
            "the Coulomb energy is by particle-mesh Ewald, which needs a periodic cell: set the "
            "cell and pbc=True, or use coulomb='all-pairs' for a molecule in vacuum"
        )
    raise InputError(
        "the Coulomb energy is by particle-mesh Ewald, which needs three periodic directions, or "
        "two for a slab, not one: give the wire a cell with gaps of vacuum and pbc=True, or use "
        "coulomb='reaction-field'"
    )


def slab_of(boxes: Sequence[Box]) -> int | None:
    """Return the direction in which boxes are not periodic, or None.

    Raises
    ------
    InputError
        If the boxes of a batch are periodic in different directions.
    """
    pbc = np.stack([box.pbc for box in boxes])
    if (pbc != pbc[0]).any():
        raise InputError(
            "systems of one batch are periodic in different directions, but particle-mesh Ewald "
            "has one kind of mesh for all: compute slabs and periodic cells in batches of their own"
        )
    return None if pbc[0].all() else int(np.flatnonzero(~pbc[0])[0])


def least_height(
    config: TensorNet2Config, positions: Tensor, cell: Tensor, system: Tensor, axis: int
) -> float:
    """Return the least height in Å that the cells of slabs need; this waits for a GPU.

    Waves along the longer vector in the plane decay in the empty space to the model's error, and no
    pair is within the cutoff across it.

    Parameters
    ----------
    config : TensorNet2Config
        A model with a ``pme_error``.
    positions : [N, 3]
        Å.
    cell : [B, 3, 3]
        Lattice vectors (rows) in Å.
    system : int64 [N]
        System of each atom.
    axis : {0, 1, 2}
        Direction that is not periodic.

    Raises
    ------
    InputError
        If a value is NaN or infinite.
    """
    assert config.coulomb_cutoff is not None
    assert config.pme_error is not None
    z = (positions * unit_normals(cell, axis)[system]).sum(1)
    ends = [
        z.new_zeros(len(cell)).scatter_reduce(0, system, z, how, include_self=False)
        for how in ("amax", "amin")
    ]
    plane = torch.stack([cell[:, axis - 2], cell[:, axis - 1]])
    longer = float(torch.linalg.vector_norm(plane, dim=2).max())
    decay = max(1.0, -math.log(config.pme_error) / (2 * math.pi))
    found = float((ends[0] - ends[1]).max()) + max(config.coulomb_cutoff, decay * longer)
    if not math.isfinite(found):
        raise InputError("a position or cell holds NaN or infinity")
    return found


def roomy(height: float) -> float:
    """Return a height in Å that slabs can fluctuate in, if they need a least height."""
    return STEP * math.ceil(height / STEP + 0.5)


def slab_cells(cell: Tensor, axis: int, height: float) -> Tensor:
    """Return cells [B, 3, 3] of slabs with a given height in Å in one direction.

    Derivatives by the cell treat the factor of this vector as constant.
    """
    rows = list(cell.unbind(1))
    rows[axis] = rows[axis] * (height / heights(cell)[:, axis, None].detach())
    return torch.stack(rows, dim=1)


def mesh_parameters(
    config: TensorNet2Config, cell: Tensor, slab: int | None = None
) -> PMEParameters:
    """Choose the splitting and the mesh of a model for cells; this waits for a GPU.

    Parameters
    ----------
    config : TensorNet2Config
        A model with a ``pme_error``.
    cell : [B, 3, 3]
        Lattice vectors (rows) in Å; those of slabs as `slab_cells` returns them.
    slab : {0, 1, 2}, optional
        Direction in which systems are not periodic.

    Raises
    ------
    InputError
        If a cell has no volume or is not finite, or the mesh would not fit into memory.
    """
    found = replace(_parameters(config, cell), slab=slab)
    points, n_meshes = math.prod(found.mesh), len(cell) * config.charge_channels
    if points > MOST_POINTS or points * n_meshes > MOST_IN_ALL:
        x, y, z = found.mesh
        raise InputError(
            f"particle-mesh Ewald needs {n_meshes} meshes of {x} x {y} x {z} points for these "
            "cells, too many: use smaller cells or batches, a longer coulomb_cutoff, or a larger "
            "pme_error"
        )
    return found


def count_points(config: TensorNet2Config, lengths: NDArray[np.float64]) -> int:
    """Return the number of mesh points of a cell for all charges of an atom.

    The mesh of several cells follows from the longest lattice vectors [3] among them, in Å.
    """
    cell = torch.from_numpy(np.diag(lengths))[None]
    return math.prod(_parameters(config, cell).mesh) * config.charge_channels


def _parameters(config: TensorNet2Config, cell: Tensor) -> PMEParameters:
    assert config.coulomb_cutoff is not None
    assert config.pme_error is not None
    return pme_parameters(cell, config.coulomb_cutoff, config.pme_error)


def splitting_of(config: TensorNet2Config) -> float:
    """Return the splitting in 1/Å of a model, which does not depend on cells."""
    return mesh_parameters(config, torch.eye(3)[None]).splitting


def prepare_mesh(
    config: TensorNet2Config, frame: Frame | None, batch: Tensor, n_edges: int
) -> tuple[Frame, PMEParameters]:
    """Check the arguments of the exact module, and choose the mesh.

    Parameters
    ----------
    config : TensorNet2Config
        A model with a ``pme_error``.
    frame : Frame or None
        Positions and cells.
    batch : int64 [N]
        System of each atom.
    n_edges : int
        Number of directed edges of the neighbor list.

    Returns
    -------
    Frame
        With the cells of slabs.
    PMEParameters

    Raises
    ------
    InputError
        If there is no frame, a value is not finite, a cell has no volume, the neighbor list lacks
        periodic images, or a CUDA graph is being captured.
    """
    if frame is None:
        raise InputError(
            "particle-mesh Ewald is not available here, where only edges are known: load the model "
            "with coulomb='reaction-field' or 'all-pairs'"
        )
    if is_capturing(frame.positions):
        raise InputError(
            "the mesh of particle-mesh Ewald is chosen on the CPU: call the model outside of the "
            "capture of CUDA graphs"
        )
    positions, cell = frame.positions, frame.cell
    if frame.slab is not None:
        given = config, positions.detach(), cell.detach(), batch, frame.slab
        cell = slab_cells(cell, frame.slab, roomy(least_height(*given)))
    parameters = mesh_parameters(config, cell.detach(), frame.slab)
    check_values(positions.new_zeros(len(positions)), positions, cell, batch, n_edges, parameters)
    return frame._replace(cell=cell), parameters


def mesh_energies(
    charges: Tensor, weights: Tensor, frame: Frame, batch: Tensor, parameters: PMEParameters
) -> Tensor:
    """Compute the part of the Coulomb energy of each atom that is a sum over waves.

    Parameters
    ----------
    charges : [N, C]
        Charges of each atom.
    weights : [C]
        Weight of the energy of each kind of charge.
    frame : Frame
        Positions and cells.
    batch : int64 [N]
        System of each atom.
    parameters : PMEParameters
        Splitting and mesh.

    Returns
    -------
    float64 [N]
        Energies in eV.
    """
    used = weights.nonzero().flatten()
    charges, weights = charges.index_select(1, used), weights.index_select(0, used)
    potential = channel_potentials(charges, frame.positions, frame.cell, batch, parameters)
    energies: Tensor = (charges * weights * potential).sum(1).double()
    return 0.5 * UNIT * energies
