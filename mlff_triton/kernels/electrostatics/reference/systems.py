"""Systems of a batch, in plain PyTorch: their atoms, sums over them, and their cells."""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.errors import InputError


def system_of(batch: Tensor | None, charges: Tensor, cell: Tensor) -> Tensor:
    """Return the system of each atom, int64 [N]; without a batch, there is one.

    Raises
    ------
    InputError
        If there are several cells and no batch.
    """
    if batch is not None:
        return batch.long()
    if len(cell) != 1:
        raise InputError(f"there are {len(cell)} cells, and no batch: give each atom's system")
    return torch.zeros(len(charges), dtype=torch.int64, device=charges.device)


def sum_systems(values: Tensor, system: Tensor, n_systems: int) -> Tensor:
    """Sum rows [N, ...] of atoms to systems [B, ...]."""
    return values.new_zeros(n_systems, *values.shape[1:]).index_add(0, system, values)


def volumes(cell: Tensor) -> Tensor:
    """Return the volumes [B] of cells [B, 3, 3]."""
    return (cell[:, 0] * _normals(cell)[:, :, 0]).sum(1).abs()


def inverse(cell: Tensor) -> Tensor:
    """Return the inverse of cells [B, 3, 3]; PyTorch's own function waits for a GPU."""
    normals = _normals(cell)
    return normals / (cell[:, 0] * normals[:, :, 0]).sum(1)[:, None, None]


def heights(cell: Tensor) -> Tensor:
    """Return the distances [B, 3] between opposite faces of cells [B, 3, 3]."""
    lengths: Tensor = torch.linalg.vector_norm(inverse(cell), dim=1)
    return 1 / lengths


def unit_normals(cell: Tensor, axis: int) -> Tensor:
    """Return unit vectors [B, 3] that are normal to the plane of all lattice vectors but one."""
    normals = _normals(cell)[:, :, axis]
    lengths: Tensor = torch.linalg.vector_norm(normals, dim=1, keepdim=True)
    return normals / lengths


def _normals(cell: Tensor) -> Tensor:
    """Return the cross products of pairs of lattice vectors, as columns [B, 3, 3]."""
    first, second, third = cell.unbind(1)
    pairs = (second, third), (third, first), (first, second)
    return torch.stack([torch.linalg.cross(*pair) for pair in pairs], dim=2)
