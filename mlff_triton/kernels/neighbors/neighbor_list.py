"""Neighbor lists on the GPU, as padded neighbor matrices.

Edge ``(i, j, S)`` says that atom ``i`` receives from the image ``S`` of atom ``j``, for

    |pos_i - pos_j - S @ cell| < radius

Atoms are sorted into bins (`bins`), each atom looks for neighbors in the bins around its own
(`search`), and rows of edges are sorted and linked to their opposites (`rows`). The result does not
depend on the bins, nor on the order in which programs run.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.common.checks import check_device, check_shape
from mlff_triton.kernels.neighbors.bins import Boxes, bin_atoms
from mlff_triton.kernels.neighbors.rows import complete_rows
from mlff_triton.kernels.neighbors.search import find_edges
from mlff_triton.kernels.types.neighbor_matrix import NeighborMatrix

MAX_CAPACITY = 1024
"""Largest number of slots per atom."""


def _check(
    positions: Tensor, cell: Tensor, pbc: Tensor, batch: Tensor, radius: float, capacity: int
) -> None:
    """Check that the arguments of `build_rows` have the right shapes, dtypes and ranges."""
    check_device(positions, cell, pbc, batch)
    check_shape("positions", positions, ["N", 3])
    check_shape("cell", cell, ["B", 3, 3])
    check_shape("pbc", pbc, [len(cell), 3])
    check_shape("batch", batch, [len(positions)])
    for name, tensor, dtype in (
        ("positions", positions, torch.float64),
        ("cell", cell, torch.float64),
        ("pbc", pbc, torch.bool),
        ("batch", batch, torch.int64),
    ):
        if tensor.dtype is not dtype:
            raise InputError(f"{name} is {tensor.dtype}: use {dtype}")
    if len(positions) == 0:
        raise InputError("positions has no atoms: pass at least one")
    if not 0 < radius < float("inf"):
        raise InputError(f"the radius must be positive and finite, not {radius}")
    if not 0 < capacity <= MAX_CAPACITY:
        raise InputError(f"the capacity must be between 1 and {MAX_CAPACITY}, not {capacity}")
    if len(positions) * capacity >= 2**31:
        raise InputError(
            f"{len(positions)} rows of {capacity} slots exceed 32-bit indices: "
            "split the batch, or reduce the capacity"
        )


def build_rows(
    positions: Tensor,
    cell: Tensor,
    pbc: Tensor,
    batch: Tensor,
    radius: float,
    capacity: int,
    *,
    atoms_per_program: int = 2,
) -> NeighborMatrix:
    """Find all pairs of atoms, including periodic images, that are closer than a radius.

    This function does not wait for the GPU. The result says whether it is complete, and must be
    checked: see `NeighborMatrix`. Positions and cells are not checked. The time grows with the
    number of images of a cell within the radius, so refuse absurdly small cells beforehand.

    Parameters
    ----------
    positions : float64 [N, 3]
        Å. Atoms may lie outside the cell, but no shift may exceed `MAX_REACH` cells.
    cell : float64 [B, 3, 3]
        Lattice vectors of each system as rows, Å, with open directions completed to a basis.
    pbc : bool [B, 3]
        Periodic directions.
    batch : int64 [N]
        System of each atom, ascending and below B.
    radius : float
        Å, such as the cutoff of a model plus a skin.
    capacity : int
        Slots ``K`` per atom.
    atoms_per_program : int
        Atoms that a program of the search serves. The result does not depend on it. The default
        is the largest number that fits the registers of one warp.

    Returns
    -------
    NeighborMatrix
        Equal inputs give the same bits. Atoms are sorted by system, then by position.

    Raises
    ------
    InputError
        If a shape, a dtype, the radius or the capacity is wrong, or the tensors are on different
        devices.
    BackendError
        If their device is not a GPU.

    Examples
    --------
    >>> if torch.cuda.is_available():
    ...     positions = torch.rand(100, 3, dtype=torch.float64, device="cuda") * 9
    ...     cell = 9 * torch.eye(3, dtype=torch.float64, device="cuda")[None]
    ...     pbc = torch.ones(1, 3, dtype=torch.bool, device="cuda")
    ...     batch = torch.zeros(100, dtype=torch.int64, device="cuda")
    ...     rows = build_rows(positions, cell, pbc, batch, radius=3.0, capacity=64)
    ...     assert rows.needed <= 64
    """
    _check(positions, cell, pbc, batch, radius, capacity)
    n_systems, device = len(cell), positions.device
    positions, batch = positions.contiguous(), batch.contiguous()
    first_atoms = torch.searchsorted(batch, torch.arange(n_systems + 1, device=device))
    boxes = Boxes(cell.contiguous(), pbc.contiguous().view(torch.uint8), first_atoms)
    rows = NeighborMatrix.empty(len(positions), n_systems, capacity, device)
    fill_rows(rows, positions, batch, boxes, radius, atoms_per_program=atoms_per_program)
    return rows


def fill_rows(
    rows: NeighborMatrix,
    positions: Tensor,
    batch: Tensor,
    boxes: Boxes,
    radius: float,
    *,
    wanted: Tensor | None = None,
    shorter: tuple[NeighborMatrix, float] | None = None,
    atoms_per_program: int = 2,
) -> None:
    """Do the same as `build_rows` in existing tensors, so that a CUDA graph can capture it.

    Parameters
    ----------
    rows : NeighborMatrix
        The matrix to fill.
    positions : float64 [N, 3]
        Å.
    batch : int [N]
        System of each atom, ascending.
    boxes : Boxes
        Cells of the systems.
    radius : float
        Å.
    wanted : int32 [], optional
        Flag on the GPU. If it is 0, the matrix stays unchanged, at little cost.
    shorter : (NeighborMatrix, float), optional
        Another matrix to fill, from `NeighborMatrix.shorter`, and its smaller radius in Å.
    atoms_per_program : int
        Same as for `build_rows`.
    """
    bins = bin_atoms(positions, batch, boxes, radius, rows, wanted)
    for matrix, limit in [(rows, radius)] + ([] if shorter is None else [shorter]):
        keys = find_edges(bins, batch, boxes, limit, atoms_per_program, matrix, wanted)
        complete_rows(keys, matrix, wanted)
