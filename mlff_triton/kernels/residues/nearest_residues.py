"""Nearest neighbors of residues, which include each residue itself.

A program keeps the distances of one residue in registers, and repeatedly takes the smallest one.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.residues.types import MAX_LENGTH

_EPS = tl.constexpr(1e-6)  # Å^2, added to squared distances
_LAST = tl.constexpr(0x7FFFFFFFFFFFFFFF)


@triton.jit
def _nearest_residues_kernel(
    positions_ptr,
    mask_ptr,
    rows_ptr,
    distances_ptr,
    length,
    count,
    L: tl.constexpr,
):
    """Write rows and distances [B, length, count]. Grid: (length, B).

    Reads positions [B, length, 3] and mask [B, length], float32.
    """
    first = tl.program_id(1).to(tl.int64) * length
    row, column = first + tl.program_id(0), tl.arange(0, L)
    inside = column < length
    sum2 = tl.zeros((L,), tl.float32) + _EPS
    for axis in tl.static_range(3):
        there = tl.load(positions_ptr + (first + column) * 3 + axis, inside, other=0.0)
        offset = there - tl.load(positions_ptr + row * 3 + axis)
        sum2 += offset * offset
    mask = tl.load(mask_ptr + first + column, inside, other=0.0) * tl.load(mask_ptr + row)
    distance = mask * tl.sqrt(sum2)
    distance += (1 - mask) * tl.max(distance, 0)

    # Distances are not negative, so their bits are in the same order. Indices resolve ties.
    keys = distance.to(tl.int32, bitcast=True).to(tl.int64) * 4294967296 + column
    keys = tl.where(inside, keys, _LAST)
    for k in range(count):
        nearest = tl.min(keys, 0)
        keys = tl.where(keys == nearest, _LAST, keys)
        bits = (nearest // 4294967296).to(tl.int32)
        tl.store(rows_ptr + row * count + k, (first + nearest % 4294967296).to(tl.int32))
        tl.store(distances_ptr + row * count + k, bits.to(tl.float32, bitcast=True))


def nearest_residues(positions: Tensor, mask: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Find the nearest neighbors of each residue in its protein, including itself.

    Masked residues get the distance of the farthest other residue, so they come last or tie with
    it.

    Parameters
    ----------
    positions : float32 [B, L, 3]
        Positions in Å.
    mask : float32 [B, L]
        1 for residues with known positions, 0 for others.
    count : int
        Number of neighbors K, at most L.

    Returns
    -------
    rows : int32 [B L, K]
        Rows of the neighbors among all B L residues, nearest first; the lower row comes first if
        distances are equal.
    distances : float32 [B L, K]
        Distances in Å.

    Raises
    ------
    InputError
        If there are more than `MAX_LENGTH` residues, or the count is larger than their number.
    """
    n_proteins, length = mask.shape
    if length > MAX_LENGTH:
        raise InputError(f"{length} residues are more than {MAX_LENGTH}: divide the protein")
    if not 0 < count <= length:
        raise InputError(f"there cannot be {count} neighbors of {length} residues")
    rows = torch.empty(n_proteins * length, count, dtype=torch.int32, device=mask.device)
    distances = torch.empty(rows.shape, device=mask.device)
    if rows.numel():
        block = triton.next_power_of_2(length)
        with torch.cuda.device_of(mask):
            _nearest_residues_kernel[(length, n_proteins)](
                positions.contiguous(),
                mask.contiguous(),
                rows,
                distances,
                length,
                count,
                L=block,
                num_warps=max(1, min(8, block // 1024)),
            )
    return rows, distances
