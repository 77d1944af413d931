"""Bins of atoms, divided by planes parallel to the faces of the cell.

Counted from the origin, an atom lies in bin ``g`` of a direction, and the atoms of a pair within
the radius are at most ``m`` bins apart. Bins are numbered modulo ``n``: bin ``g = w n + c`` is bin
``c`` of image ``w``.

- Periodic directions: ``n`` bins span the cell. An atom ``j`` found ``o`` bins after atom ``i``
  belongs to the image ``S = floor((g_i + o) / n) - w_j``. In a large cell, ``m = 1``. A cell lower
  than the radius is a single bin with a larger ``m``. Small and large systems need no distinction.
- Open directions: bins ``n`` apart share a number, so some atoms that are too far away are tested
  too. Each pair is found once as long as ``2 m + 1 <= n``. A small system is a single bin:
  ``n = 1``, ``m = 0``.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.neighbors.motion import is_unwanted
from mlff_triton.kernels.types.neighbor_matrix import NeighborMatrix

ATOMS_PER_BIN = tl.constexpr(8)  # lower bound of the mean, which limits the number of bins
SLACK = tl.constexpr(1e-6)  # relative, far above the rounding error of any coordinate
NOWHERE = tl.constexpr(1 << 29)  # image of an atom that many bins away, or at NaN


class Boxes(NamedTuple):
    """Cells of the systems, and their ranges of atoms.

    Attributes
    ----------
    cell : float64 [B, 3, 3]
        Lattice vectors as rows, Å.
    pbc : uint8 [B, 3]
        1 in periodic directions, 0 in open ones.
    first_atoms : int [B + 1]
        First atom of each system.
    """

    cell: Tensor
    pbc: Tensor
    first_atoms: Tensor


class Bins(NamedTuple):
    """Bins of the systems, and atoms sorted by bin.

    Attributes
    ----------
    shape, span : int32 [B, 3]
        Number ``n`` of bins in each direction, and largest distance ``m`` of a pair in bins.
    starts : int32 [bins + 1]
        First sorted atom of each bin, numbered through all systems.
    bin_of_atom : int32 [N]
        Bin of each sorted atom.
    order : int32 [N]
        User's index of each sorted atom.
    positions : float64 [3, N]
        Positions of the sorted atoms, Å.
    images : int32 [3, N]
        Image ``w`` of each sorted atom; 0 in open directions.
    """

    shape: Tensor
    span: Tensor
    starts: Tensor
    bin_of_atom: Tensor
    order: Tensor
    positions: Tensor
    images: Tensor


@triton.jit
def first_bin_of(first_atom, system):
    """Return the first bin of a system. Bins are distinct: a system has at most max(1, N // 8)."""
    return first_atom // ATOMS_PER_BIN + system


@triton.jit
def plane(cell_ptr, DIRECTION: tl.constexpr):
    """Return the gradient of a fractional coordinate (3 scalars), and the height of the cell."""
    a_ptr = cell_ptr + 3 * DIRECTION
    b_ptr = cell_ptr + 3 * ((DIRECTION + 1) % 3)
    c_ptr = cell_ptr + 3 * ((DIRECTION + 2) % 3)
    bx, by, bz = tl.load(b_ptr), tl.load(b_ptr + 1), tl.load(b_ptr + 2)
    cx, cy, cz = tl.load(c_ptr), tl.load(c_ptr + 1), tl.load(c_ptr + 2)
    x = by * cz - bz * cy
    y = bz * cx - bx * cz
    z = bx * cy - by * cx
    volume = tl.load(a_ptr) * x + tl.load(a_ptr + 1) * y + tl.load(a_ptr + 2) * z
    height = tl.abs(volume) / tl.sqrt(x * x + y * y + z * z)
    return x / volume, y / volume, z / volume, height


@triton.jit
def _bins_kernel(
    cell_ptr,
    pbc_ptr,
    first_atoms_ptr,
    planes_ptr,
    shape_ptr,
    span_ptr,
    inverse_ptr,
    wanted_ptr,
    radius: tl.float64,
):
    """Choose the bins of each system. Grid: one program per system.

    Reads ``cell[B, 3, 3]``, ``pbc[B, 3]`` and ``first_atoms[B + 1]``. Writes the number of bins
    ``shape[B, 3]``, ``span[B, 3]``, ``planes[B, 3, 3]``, with ``g = floor(pos . plane)``, and the
    ``inverse[B, 3, 3]`` of the cell.
    """
    if is_unwanted(wanted_ptr):
        return
    system = tl.program_id(0).to(tl.int64)
    n_atoms = tl.load(first_atoms_ptr + system + 1) - tl.load(first_atoms_ptr + system)
    limit = tl.maximum(n_atoms // ATOMS_PER_BIN, 1).to(tl.float64)
    least = radius * (1 + SLACK)
    n_open = 0
    for d in tl.static_range(3):
        x, y, z, height = plane(cell_ptr + 9 * system, d)
        scale = height / least
        if tl.load(pbc_ptr + 3 * system + d) != 0:
            scale = tl.minimum(tl.maximum(tl.floor(scale), 1.0), limit)
            limit = tl.floor(limit / scale)
            tl.store(shape_ptr + 3 * system + d, scale.to(tl.int32))
            tl.store(span_ptr + 3 * system + d, tl.ceil(least * scale / height).to(tl.int32))
        else:
            n_open += 1
        tl.store(inverse_ptr + 9 * system + d, x)
        tl.store(inverse_ptr + 9 * system + 3 + d, y)
        tl.store(inverse_ptr + 9 * system + 6 + d, z)
        tl.store(planes_ptr + 9 * system + 3 * d, x * scale)
        tl.store(planes_ptr + 9 * system + 3 * d + 1, y * scale)
        tl.store(planes_ptr + 9 * system + 3 * d + 2, z * scale)
    # The small summand keeps integer roots, such as that of 27, from being rounded down.
    share = tl.floor(tl.exp(tl.log(limit) / tl.maximum(n_open, 1)) + 1e-9)
    for d in tl.static_range(3):
        if tl.load(pbc_ptr + 3 * system + d) == 0:
            tl.store(shape_ptr + 3 * system + d, tl.where(share < 3, 1, share).to(tl.int32))
            tl.store(span_ptr + 3 * system + d, tl.where(share < 3, 0, 1))


@triton.jit
def _assign_kernel(
    positions_ptr,
    pbc_ptr,
    batch_ptr,
    first_atoms_ptr,
    planes_ptr,
    shape_ptr,
    bin_of_atom_ptr,
    images_ptr,
    wanted_ptr,
    n_atoms,
    BLOCK: tl.constexpr,
):
    """Find the bin and the image of each atom. Grid: one program per ``BLOCK`` atoms.

    Reads ``positions[N, 3]``, ``pbc[B, 3]``, ``batch[N]``, ``first_atoms[B + 1]``,
    ``planes[B, 3, 3]`` and the number of bins ``shape[B, 3]``. Writes ``bin_of_atom[N]``, numbered
    through all systems, and ``images[N, 3]``.
    """
    if is_unwanted(wanted_ptr):
        return
    atom = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = atom < n_atoms
    system = tl.load(batch_ptr + atom, mask, other=0)
    x = tl.load(positions_ptr + 3 * atom, mask, other=0.0)
    y = tl.load(positions_ptr + 3 * atom + 1, mask, other=0.0)
    z = tl.load(positions_ptr + 3 * atom + 2, mask, other=0.0)
    index = tl.zeros((BLOCK,), tl.int64)
    for d in tl.static_range(3):
        scaled = planes_ptr + 9 * system + 3 * d
        g = tl.load(scaled, mask, other=0.0) * x
        g += tl.load(scaled + 1, mask, other=0.0) * y
        g += tl.load(scaled + 2, mask, other=0.0) * z
        somewhere = tl.abs(g) < NOWHERE
        g = tl.floor(tl.where(somewhere, g, 0.0))
        n = tl.load(shape_ptr + 3 * system + d, mask, other=1)
        w = tl.floor(g / n.to(tl.float64))
        index = index * n + (g - w * n).to(tl.int64)
        periodic = tl.load(pbc_ptr + 3 * system + d, mask, other=0) != 0
        image = tl.where(periodic, w.to(tl.int32), 0)
        tl.store(images_ptr + 3 * atom + d, tl.where(somewhere, image, NOWHERE), mask)
    index += first_bin_of(tl.load(first_atoms_ptr + system, mask, other=0), system)
    tl.store(bin_of_atom_ptr + atom, index.to(tl.int32), mask)


@triton.jit
def _arrange_kernel(
    positions_ptr,
    images_ptr,
    sorted_ptr,
    order_ptr,
    rank_ptr,
    built_ptr,
    sorted_positions_ptr,
    sorted_images_ptr,
    wanted_ptr,
    n_atoms,
    BLOCK: tl.constexpr,
):
    """Gather the atoms in the order of their bins. Grid: one program per ``BLOCK`` atoms.

    Reads ``positions[N, 3]``, ``images[N, 3]`` and the user's index ``sorted[N]``, int64, of each
    sorted atom. Writes ``order[N]``, ``rank[N]``, ``sorted_positions[3, N]``,
    ``sorted_images[3, N]``, and a copy ``built[N, 3]`` of the positions.
    """
    if is_unwanted(wanted_ptr):
        return
    rank = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = rank < n_atoms
    atom = tl.load(sorted_ptr + rank, mask, other=0)
    tl.store(order_ptr + rank, atom.to(tl.int32), mask)
    tl.store(rank_ptr + atom, rank.to(tl.int32), mask)
    for d in tl.static_range(3):
        position = tl.load(positions_ptr + 3 * atom + d, mask)
        image = tl.load(images_ptr + 3 * atom + d, mask)
        tl.store(built_ptr + 3 * atom + d, position, mask)
        tl.store(sorted_positions_ptr + d * tl.cast(n_atoms, tl.int64) + rank, position, mask)
        tl.store(sorted_images_ptr + d * tl.cast(n_atoms, tl.int64) + rank, image, mask)


def bin_atoms(
    positions: Tensor,
    batch: Tensor,
    boxes: Boxes,
    radius: float,
    out: NeighborMatrix,
    wanted: Tensor | None,
) -> Bins:
    """Choose bins for the radius, and sort the atoms into them.

    Parameters
    ----------
    positions : float64 [N, 3]
        Å.
    batch : int [N]
        System of each atom, ascending.
    boxes : Boxes
        Cells of the systems.
    radius : float
        Å.
    out : NeighborMatrix
        Its ``order``, ``rank``, ``positions`` and ``inverse`` are written.
    wanted : int32 [], optional
        If given and 0, nothing is written.
    """
    n_atoms, n_systems, device = len(positions), len(boxes.cell), positions.device
    planes = torch.empty_like(boxes.cell)
    shape, span = (batch.new_empty((n_systems, 3), dtype=torch.int32) for _ in range(2))
    _bins_kernel[(n_systems,)](
        *boxes, planes, shape, span, out.inverse, wanted, radius, num_warps=1
    )
    bin_of_atom = batch.new_empty(n_atoms, dtype=torch.int32)
    images = batch.new_empty((n_atoms, 3), dtype=torch.int32)
    grid = (triton.cdiv(n_atoms, 256),)
    _assign_kernel[grid](
        positions,
        boxes.pbc,
        batch,
        boxes.first_atoms,
        planes,
        shape,
        bin_of_atom,
        images,
        wanted,
        n_atoms,
        BLOCK=256,
    )

    bin_of_atom, by_bin = torch.sort(bin_of_atom, stable=True)
    n_bins = n_atoms // ATOMS_PER_BIN.value + n_systems
    borders = torch.arange(n_bins + 1, dtype=torch.int32, device=device)
    starts = torch.searchsorted(bin_of_atom, borders, out_int32=True)

    sorted_positions, sorted_images = (x.new_empty((3, n_atoms)) for x in (positions, images))
    _arrange_kernel[grid](
        positions,
        images,
        by_bin,
        out.order,
        out.rank,
        out.positions,
        sorted_positions,
        sorted_images,
        wanted,
        n_atoms,
        BLOCK=256,
    )
    return Bins(shape, span, starts, bin_of_atom, out.order, sorted_positions, sorted_images)
