"""Coulomb energy of partial charges and all their periodic images, by particle-mesh Ewald.

The energy of pairs is that of `mlff_triton.model.coulomb.coulomb_energy` without a cutoff, summed
over all images: `mlff_triton.model.coulomb.ewald_energy` over pairs within the cutoff, and the sum
over waves here. Charged cells get a uniform background that neutralizes them.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from mlff_triton._common.cuda_graphs import is_capturing
from mlff_triton.errors import InputError
from mlff_triton.kernels.electrostatics.parameters import pme_parameters
from mlff_triton.kernels.electrostatics.reference.charge_channels import channel_potentials
from mlff_triton.kernels.electrostatics.types import COULOMB as MESH_COULOMB
from mlff_triton.kernels.electrostatics.types import PMEParameters
from mlff_triton.kernels.electrostatics.validity import check_values
from mlff_triton.model.config import TensorNet2Config
from mlff_triton.model.coulomb import COULOMB
from mlff_triton.model.tensornet import Frame
from mlff_triton.neighbors.box import Box

MOST_POINTS, MOST_IN_ALL = 1 << 27, 1 << 31
"""Largest numbers of mesh points of a cell, and of all cells and charges of an atom."""
UNIT = COULOMB / MESH_COULOMB
"""Factor from energies of the mesh to those of the model, whose constants differ by rounding."""


class ChargedCellWarning(UserWarning):
    """The energy of a charged periodic cell includes a background that neutralizes it."""


def background(charge: float) -> str:
    """Return one line about the background of a charged cell."""
    return (
        f"the cell has the charge {charge:+g} e: its energy includes a uniform background that "
        "neutralizes it, and depends on the size of the cell"
    )


def check_mesh_box(box: Box) -> None:
    """Raise `InputError` unless a box is periodic in all three directions."""
    if box.pbc.all():
        return
    if not box.pbc.any():
        raise InputError(
            "the Coulomb energy is by particle-mesh Ewald, which needs a periodic cell: set the "
            "cell and pbc=True, or use coulomb='all-pairs' for a molecule in vacuum"
        )
    raise InputError(
        f"the Coulomb energy is by particle-mesh Ewald, which needs three periodic directions, not "
        f"{int(np.sum(box.pbc))}: give the slab or wire a cell with a gap of vacuum and pbc=True, "
        "or use coulomb='reaction-field'"
    )


def mesh_parameters(config: TensorNet2Config, cell: Tensor) -> PMEParameters:
    """Choose the splitting and the mesh of a model for cells, which waits for a GPU.

    Parameters
    ----------
    config : TensorNet2Config
        A model with a ``pme_error``.
    cell : [B, 3, 3]
        Lattice vectors (rows) in Å.

    Raises
    ------
    InputError
        If a cell has no volume or is not finite, or the mesh would not fit into memory.
    """
    found = _parameters(config, cell)
    points, n_meshes = math.prod(found.mesh), len(cell) * config.charge_channels
    if points > MOST_POINTS or points * n_meshes > MOST_IN_ALL:
        x, y, z = found.mesh
        raise InputError(
            f"particle-mesh Ewald needs {n_meshes} meshes of {x} x {y} x {z} points for these "
            "cells, too many: use smaller cells or batches, a longer coulomb_cutoff, or a larger "
            "pme_error"
        )
    return found


def count_points(config: TensorNet2Config, cell: Tensor) -> int:
    """Return the number of mesh points of all cells [B, 3, 3] and charges of an atom."""
    return math.prod(_parameters(config, cell).mesh) * len(cell) * config.charge_channels


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
    """Check what the exact module is given, and choose the mesh.

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
    parameters = mesh_parameters(config, frame.cell.detach())
    positions, cell = frame.positions, frame.cell
    check_values(positions.new_zeros(len(positions)), positions, cell, batch, n_edges, parameters)
    return frame, parameters


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
