"""Search for neighbors in the bins around each atom.

The bins only propose candidates. Pairs are tested on the positions as given, in float64, by
operations that are the same up to the sign for both directions of a pair.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.neighbors.bins import NOWHERE, Bins, Boxes, first_bin_of
from mlff_triton.kernels.neighbors.motion import is_unwanted
from mlff_triton.kernels.types.neighbor_matrix import NeighborMatrix

NO_SHIFT = tl.constexpr(0x808080)  # three bytes, each plus 128
THREE_BYTES = tl.constexpr(0xFFFFFF)


@triton.jit
def _load_three(pointer, stride, index, mask):
    """Load three blocks, ``stride`` apart, in the shape of ``index``."""
    return (
        tl.load(pointer + index, mask),
        tl.load(pointer + stride + index, mask),
        tl.load(pointer + 2 * stride + index, mask),
    )


@triton.jit
def _load_cell(cell_ptr):
    """Load the nine entries of a cell: lattice vectors as rows."""
    ax, ay, az = tl.load(cell_ptr), tl.load(cell_ptr + 1), tl.load(cell_ptr + 2)
    bx, by, bz = tl.load(cell_ptr + 3), tl.load(cell_ptr + 4), tl.load(cell_ptr + 5)
    cx, cy, cz = tl.load(cell_ptr + 6), tl.load(cell_ptr + 7), tl.load(cell_ptr + 8)
    return ax, ay, az, bx, by, bz, cx, cy, cz


@triton.jit
def _is_near(position_i, position_j, shift, cell, squared_radius):
    """Test the pairs of atoms i [ROWS, 1] and j [1, BLOCK], shifted by [ROWS, BLOCK] cells."""
    ax, ay, az, bx, by, bz, cx, cy, cz = cell
    fa, fb, fc = shift[0].to(tl.float64), shift[1].to(tl.float64), shift[2].to(tl.float64)
    x = position_i[0] - position_j[0]
    y = position_i[1] - position_j[1]
    z = position_i[2] - position_j[2]
    x -= fa * ax + fb * bx + fc * cx
    y -= fa * ay + fb * by + fc * cy
    z -= fa * az + fb * bz + fc * cz
    return x * x + y * y + z * z - squared_radius < 0


@triton.jit
def _find_kernel(
    positions_ptr,
    images_ptr,
    order_ptr,
    batch_ptr,
    bin_of_atom_ptr,
    starts_ptr,
    cell_ptr,
    pbc_ptr,
    first_atoms_ptr,
    bins_ptr,
    span_ptr,
    count_ptr,
    needed_ptr,
    reach_ptr,
    tallies_ptr,
    keys_ptr,
    wanted_ptr,
    n_atoms,
    squared_radius: tl.float64,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Find the edges of each atom as unsorted keys ``(j, S)``. Grid: one program per ROWS atoms.

    Reads the atoms sorted by bin, as in `Bins`: ``positions[3, N]``, ``images[3, N]``,
    ``order[N]``, ``bin_of_atom[N]``; and ``batch[N]``, ``starts[bins + 1]``, ``cell[B, 3, 3]``,
    ``pbc[B, 3]``, ``first_atoms[B + 1]``, ``bins[B, 3]`` and ``span[B, 3]``. Writes the first K
    ``keys[N, K]`` of each atom, their number ``count[N]``, and in ``tallies[2, N]`` the number of
    all its edges and the largest component of their shifts. If the matrix is still valid, these are
    its ``needed`` and ``reach``, and nothing else is written.

    The atoms of a bin share their candidates. Bins that are adjacent in the last direction are
    adjacent in memory.
    """
    first = tl.program_id(0).to(tl.int64) * ROWS
    atoms = tl.cast(n_atoms, tl.int64)
    i = first + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
    exists = i < atoms
    if is_unwanted(wanted_ptr):
        tl.store(tallies_ptr + i, tl.load(needed_ptr), exists)
        tl.store(tallies_ptr + atoms + i, tl.load(reach_ptr), exists)
        return
    position_i = _load_three(positions_ptr, atoms, i, exists)
    wa, wb, wc = _load_three(images_ptr, atoms, i, exists)
    bin_of_i = tl.load(bin_of_atom_ptr + i, exists)
    lost = (wa == NOWHERE) | (wb == NOWHERE) | (wc == NOWHERE)
    reach = tl.where(lost, NOWHERE, 0) + tl.zeros((ROWS, BLOCK), tl.int32)
    count = tl.zeros((ROWS, 1), tl.int32)

    current = first
    while current < tl.minimum(first + ROWS, atoms):
        own_bin = tl.load(bin_of_atom_ptr + current)
        here = exists & (bin_of_i == own_bin)
        system = tl.load(batch_ptr + current)
        cell = _load_cell(cell_ptr + 9 * system)
        bins, span, pbc = bins_ptr + 3 * system, span_ptr + 3 * system, pbc_ptr + 3 * system
        na, nb, nc = tl.load(bins), tl.load(bins + 1), tl.load(bins + 2)
        ma, mb, mc = tl.load(span), tl.load(span + 1), tl.load(span + 2)
        pa, pb, pc = tl.load(pbc), tl.load(pbc + 1), tl.load(pbc + 2)
        first_bin = first_bin_of(tl.load(first_atoms_ptr + system), system)
        # Adding m images keeps sums positive, because integer division rounds toward zero.
        index = (own_bin - first_bin).to(tl.int32)
        lowest_a = index // (nb * nc) + ma * na - ma
        lowest_b = index // nc % nb + mb * nb - mb
        lowest_c = index % nc + mc * nc - mc
        highest_c = lowest_c + 2 * mc
        for a in range(lowest_a, lowest_a + 2 * ma + 1):
            image_a = wa + (a // na - ma) * pa.to(tl.int32)
            for b in range(lowest_b, lowest_b + 2 * mb + 1):
                image_b = wb + (b // nb - mb) * pb.to(tl.int32)
                column = starts_ptr + first_bin + (a % na * nb + b % nb) * nc
                for c in range(lowest_c // nc, highest_c // nc + 1):
                    image_c = wc + (c - mc) * pc.to(tl.int32)
                    start = tl.load(column + tl.maximum(lowest_c - c * nc, 0))
                    stop = tl.load(column + tl.minimum(highest_c - c * nc, nc - 1) + 1)
                    for block in range(start, stop, BLOCK):
                        j = block + tl.arange(0, BLOCK)[None, :]  # [1, BLOCK]
                        inside = j < stop
                        wj = _load_three(images_ptr, atoms, j, inside)
                        sa, sb, sc = image_a - wj[0], image_b - wj[1], image_c - wj[2]
                        position_j = _load_three(positions_ptr, atoms, j, inside)
                        near = _is_near(position_i, position_j, (sa, sb, sc), cell, squared_radius)
                        other = (i != j) | ((sa | sb | sc) != 0)
                        hit = here & inside & near & other
                        atom = tl.load(order_ptr + j, inside).to(tl.int64)
                        shift = (sa << 16) + (sb << 8) + sc + NO_SHIFT & THREE_BYTES
                        slot = count + tl.cumsum(hit.to(tl.int32), 1) - 1
                        tl.store(keys_ptr + i * K + slot, atom << 24 | shift, hit & (slot < K))
                        count += tl.sum(hit.to(tl.int32), 1, keep_dims=True)
                        farthest = tl.maximum(tl.abs(sa), tl.maximum(tl.abs(sb), tl.abs(sc)))
                        reach = tl.maximum(reach, tl.where(hit, farthest, 0))
        current = tl.load(starts_ptr + own_bin + 1).to(tl.int64)
    tl.store(count_ptr + i, tl.minimum(count, K), exists)
    tl.store(tallies_ptr + i, count, exists)
    tl.store(tallies_ptr + atoms + i, tl.max(reach, 1, keep_dims=True), exists)


def find_edges(
    bins: Bins,
    batch: Tensor,
    boxes: Boxes,
    radius: float,
    atoms_per_program: int,
    out: NeighborMatrix,
    wanted: Tensor | None,
) -> Tensor:
    """Find the neighbors of each sorted atom.

    Parameters
    ----------
    bins : Bins
        Sorted atoms.
    batch : int [N]
        System of each atom.
    boxes : Boxes
        Cells of the systems.
    radius : float
        Å.
    atoms_per_program : int
        Number of atoms that share their loads.
    out : NeighborMatrix
        Its ``count``, ``needed`` and ``reach`` are written.
    wanted : int32 [], optional
        If given and 0, the matrix stays unchanged.

    Returns
    -------
    int64 [N, K]
        Keys: the user's index of ``j``, and in the three low bytes the shift, the first component
        highest. The first ``count`` of each atom are defined.
    """
    n_atoms = len(batch)
    tallies = bins.order.new_empty((2, n_atoms))
    keys = batch.new_empty((n_atoms, out.capacity), dtype=torch.int64)
    _find_kernel[(triton.cdiv(n_atoms, atoms_per_program),)](
        bins.positions,
        bins.images,
        bins.order,
        batch,
        bins.bin_of_atom,
        bins.starts,
        *boxes,
        bins.shape,
        bins.span,
        out.count,
        out.needed,
        out.reach,
        tallies,
        keys,
        wanted,
        n_atoms,
        radius**2,
        K=out.capacity,
        ROWS=atoms_per_program,
        BLOCK=32,
        num_warps=1,
    )
    torch.amax(tallies[0], 0, out=out.needed)
    torch.amax(tallies[1], 0, out=out.reach)
    return keys
