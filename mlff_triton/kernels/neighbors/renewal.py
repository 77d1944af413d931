"""Unchecked positions and cells of a step, and a test of its neighbor matrix.

All of this happens on the GPU, so that a program may replace all positions between steps:

- Positions are shifted by whole cells, because the matrix stores only shifts of a few cells.
- A flag says whether the matrix must be built again; see `mlff_triton.kernels.neighbors.motion`.
- A system whose cell or positions are unusable keeps its last cell, and its atoms move with that
  cell as if fixed to it. Thus it does not spoil the matrix that it shares with other systems.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common.checks import check_device
from mlff_triton.kernels.neighbors.bins import Boxes, plane
from mlff_triton.kernels.neighbors.motion import (
    cross,
    deformation,
    dot,
    load_columns,
    load_vector,
    motion,
    subtract_product,
)
from mlff_triton.kernels.types.neighbor_matrix import NeighborMatrix

WRAP = tl.constexpr(64)  # cells; atoms are shifted by multiples, so that nearby atoms stay
FARTHEST = tl.constexpr(1 << 20)  # cells, or Å in open directions
_ROUNDING = tl.constexpr(1e-9)  # Å; edges must not find a matrix stale that was found valid here


@triton.jit
def _cells_kernel(
    given_ptr,
    pbc_ptr,
    first_atoms_ptr,
    cell_ptr,
    lost_ptr,
    radius: tl.float64,
    max_images: tl.float64,
):
    """Take over the periodic vectors of each cell that is usable. Grid: one program per system.

    Reads ``given[B, 3, 3]``, ``pbc[B, 3]`` and ``first_atoms[B + 1]``. Writes ``cell[B, 3, 3]`` and
    ``lost[B]``, which is 1 for cells that are singular, not finite, or far too small.
    """
    system = tl.program_id(0).to(tl.int64)
    given, kept, pbc = given_ptr + 9 * system, cell_ptr + 9 * system, pbc_ptr + 3 * system
    pa, pb, pc = tl.load(pbc) != 0, tl.load(pbc + 1) != 0, tl.load(pbc + 2) != 0
    a = _choose(pa, load_vector(given, 0), load_vector(kept, 0))
    b = _choose(pb, load_vector(given, 1), load_vector(kept, 1))
    c = _choose(pc, load_vector(given, 2), load_vector(kept, 2))
    bc, ca, ab = cross(b, c), cross(c, a), cross(a, b)
    volume = tl.abs(dot(a, bc))
    n_atoms = tl.load(first_atoms_ptr + system + 1) - tl.load(first_atoms_ptr + system)
    images = n_atoms.to(tl.float64) * _images(pa, bc, volume, radius)
    images *= _images(pb, ca, volume, radius) * _images(pc, ab, volume, radius)
    usable = (volume > 0) & (volume < float("inf")) & (images <= max_images)  # false with NaN
    for d in tl.static_range(3):
        tl.store(kept + d, a[d], usable)
        tl.store(kept + 3 + d, b[d], usable)
        tl.store(kept + 6 + d, c[d], usable)
    tl.store(lost_ptr + system, tl.where(usable, 0, 1))


@triton.jit
def _choose(condition, a, b):
    """Return one of two vectors."""
    return (
        tl.where(condition, a[0], b[0]),
        tl.where(condition, a[1], b[1]),
        tl.where(condition, a[2], b[2]),
    )


@triton.jit
def _images(periodic, normal, volume, radius):
    """Return how many images of the cell lie within the radius in one direction."""
    images = 2 * tl.ceil(radius * tl.sqrt(dot(normal, normal)) / volume) + 1
    return tl.where(periodic, images, 1.0)


@triton.jit
def _check_kernel(
    given_ptr,
    system_ptr,
    cell_ptr,
    wraps_ptr,
    built_ptr,
    inverse_ptr,
    lost_ptr,
    wanted_ptr,
    n_atoms,
    cutoff: tl.float64,
    radius: tl.float64,
    BLOCK: tl.constexpr,
):
    """Find lost atoms, and those without a valid matrix. Grid: one program per BLOCK atoms.

    Reads ``given[N, 3]``, ``system[N]``, ``cell[B, 3, 3]``, ``wraps[N, 3]``; ``built[N, 3]`` and
    ``inverse[B, 3, 3]`` of the matrix. Sets ``lost[B]`` for systems with an atom that is not
    finite, or too far away, and ``wanted`` if another atom has moved too far.
    """
    atom = tl.minimum(tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), n_atoms - 1).to(tl.int64)
    given = load_vector(given_ptr, atom)
    system = tl.load(system_ptr + atom).to(tl.int64)
    cell = load_columns(cell_ptr + 9 * system)
    x, y, z = _fractions(given, cell_ptr + 9 * system)
    somewhere = (tl.abs(x) < FARTHEST) & (tl.abs(y) < FARTHEST) & (tl.abs(z) < FARTHEST)
    position = subtract_product(given, load_vector(wraps_ptr, atom), cell)
    built = load_vector(built_ptr, atom)
    moved, limit = motion(position, cell, built, inverse_ptr + 9 * system, cutoff, radius)
    holds = moved <= limit - _ROUNDING  # false with NaN
    tl.atomic_max(lost_ptr + system, 1, ~somewhere)
    tl.atomic_max(wanted_ptr, tl.max((somewhere & ~holds).to(tl.int32)))


@triton.jit
def _fractions(position, cell_ptr):
    """Return the fractional coordinates of atoms, given block pointers to their cells."""
    ax, ay, az, _ = plane(cell_ptr, 0)
    bx, by, bz, _ = plane(cell_ptr, 1)
    cx, cy, cz, _ = plane(cell_ptr, 2)
    return dot(position, (ax, ay, az)), dot(position, (bx, by, bz)), dot(position, (cx, cy, cz))


@triton.jit
def _place_kernel(
    given_ptr,
    system_ptr,
    cell_ptr,
    pbc_ptr,
    built_ptr,
    inverse_ptr,
    lost_ptr,
    wanted_ptr,
    wraps_ptr,
    positions_ptr,
    n_atoms,
    BLOCK: tl.constexpr,
):
    """Write the positions of the step. Grid: one program per BLOCK atoms.

    Reads ``given[N, 3]``, ``system[N]``, ``cell[B, 3, 3]``, ``pbc[B, 3]``, ``lost[B]``, ``wanted``;
    ``built[N, 3]`` and ``inverse[B, 3, 3]`` of the matrix. Writes ``positions[N, 3]`` and, if the
    matrix will be built, the number ``wraps[N, 3]`` of cells by which they are shifted.
    """
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < n_atoms
    atom = tl.minimum(index, n_atoms - 1).to(tl.int64)
    given = load_vector(given_ptr, atom)
    system = tl.load(system_ptr + atom).to(tl.int64)
    cell = load_columns(cell_ptr + 9 * system)
    lost = tl.load(lost_ptr + system) != 0
    renews = (tl.load(wanted_ptr) != 0) & ~lost

    fractions = _fractions(given, cell_ptr + 9 * system)
    wraps = load_vector(wraps_ptr, atom)
    x = _wrap(pbc_ptr + 3 * system, fractions[0])
    y = _wrap(pbc_ptr + 3 * system + 1, fractions[1])
    z = _wrap(pbc_ptr + 3 * system + 2, fractions[2])
    wraps = _choose(renews, (x, y, z), wraps)
    placed = subtract_product(given, wraps, cell)

    strain, _ = deformation(inverse_ptr + 9 * system, cell)
    built = load_vector(built_ptr, atom)
    fixed = dot(built, strain[0]), dot(built, strain[1]), dot(built, strain[2])
    position = _choose(lost, fixed, placed)
    for d in tl.static_range(3):
        tl.store(wraps_ptr + 3 * atom + d, wraps[d], mask)
        tl.store(positions_ptr + 3 * atom + d, position[d], mask)


@triton.jit
def _wrap(pbc_ptr, fraction):
    """Return the number of cells to subtract in one direction, a multiple of WRAP."""
    return tl.where(tl.load(pbc_ptr) != 0, WRAP * tl.floor(fraction / WRAP + 0.5), 0.0)


def place_atoms(
    given: Tensor,
    given_cell: Tensor,
    system: Tensor,
    boxes: Boxes,
    rows: NeighborMatrix,
    wraps: Tensor,
    cutoff: float,
    radius: float,
    max_images: float,
    *,
    positions: Tensor,
    lost: Tensor,
    wanted: Tensor,
) -> None:
    """Take over positions and cells, and find out if the neighbor matrix is valid for them.

    Parameters
    ----------
    given : float64 [N, 3]
        Positions in Å.
    given_cell : float64 [B, 3, 3]
        Lattice vectors (rows) in Å. Those of open directions are not read.
    system : int32 [N]
        System of each atom.
    boxes : Boxes
        Its cells are overwritten by the given ones; vectors of open directions stay.
    rows : NeighborMatrix
        Its ``positions`` and ``inverse`` are read.
    wraps : float64 [N, 3]
        Number of cells by which each atom is shifted; updated when the matrix is to be built.
    cutoff, radius : float
        Cutoff, and cutoff plus skin, in Å.
    max_images : float
        Largest number of atoms times images within the radius, per system.
    positions : float64 [N, 3]
        Written: positions for the step, Å.
    lost : int32 [B]
        Written: 1 for systems whose cell or positions are unusable, else 0.
    wanted : int32 []
        Set to 1 if the matrix is not valid; otherwise unchanged.
    """
    check_device(given)
    n_atoms, n_systems = len(given), len(given_cell)
    cell, pbc, first_atoms = boxes
    grid = (triton.cdiv(n_atoms, 128),)
    with torch.cuda.device_of(given):
        _cells_kernel[(n_systems,)](
            given_cell, pbc, first_atoms, cell, lost, radius, max_images, num_warps=1
        )
        _check_kernel[grid](
            given,
            system,
            cell,
            wraps,
            rows.positions,
            rows.inverse,
            lost,
            wanted,
            n_atoms,
            cutoff,
            radius,
            BLOCK=128,
        )
        _place_kernel[grid](
            given,
            system,
            cell,
            pbc,
            rows.positions,
            rows.inverse,
            lost,
            wanted,
            wraps,
            positions,
            n_atoms,
            BLOCK=128,
        )
