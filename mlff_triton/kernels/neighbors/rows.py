"""Rows of the neighbor matrix: edges in their final order, and the slots of their opposites."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.neighbors.motion import is_unwanted
from mlff_triton.kernels.neighbors.search import NO_SHIFT, THREE_BYTES
from mlff_triton.kernels.types.neighbor_matrix import NeighborMatrix

NO_EDGE = tl.constexpr((1 << 63) - 1)


@triton.jit
def _sort_kernel(
    found_ptr,
    rank_ptr,
    count_ptr,
    keys_ptr,
    senders_ptr,
    shifts_ptr,
    wanted_ptr,
    K: tl.constexpr,
    SLOTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Sort the keys of a row, and unpack them. Grid: one program per atom.

    Reads ``found[N, K]``, of which ``count[N]`` keys are used, and ``rank[N]``. Writes sorted
    ``keys[N, K]``, ``senders[N, K]`` and ``shifts[N, K]``. The slot of a key is the number of
    smaller keys.
    """
    if is_unwanted(wanted_ptr):
        return
    row = tl.program_id(0).to(tl.int64)
    slot = tl.arange(0, SLOTS)
    count = tl.load(count_ptr + row)
    used = slot < count
    key = tl.load(found_ptr + row * K + slot, used, other=0)
    smaller = tl.zeros((SLOTS,), tl.int32)
    for block in range(0, count, BLOCK):
        others = block + tl.arange(0, BLOCK)
        other = tl.load(found_ptr + row * K + others, others < count, other=NO_EDGE)
        smaller += tl.sum((other[:, None] < key[None, :]).to(tl.int32), 0)
    edge = row * K + tl.where(used, smaller, slot)
    sender = tl.load(rank_ptr + (key >> 24), used, other=0)
    # The first component is the highest byte of a key, to sort by it, but the lowest of a shift.
    shift = (key >> 16 & 255) | (key & 255 << 8) | (key & 255) << 16
    tl.store(keys_ptr + edge, key, used)
    tl.store(senders_ptr + edge, tl.where(used, sender, row.to(tl.int32)), slot < K)
    tl.store(shifts_ptr + edge, tl.where(used, shift, NO_SHIFT).to(tl.int32), slot < K)


@triton.jit
def _reverse_kernel(
    keys_ptr,
    order_ptr,
    count_ptr,
    senders_ptr,
    reverse_ptr,
    wanted_ptr,
    n_atoms,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    SLOTS: tl.constexpr,
    STEPS: tl.constexpr,
):
    """Find the slot of the opposite of each edge by bisection. Grid: one program per ROWS atoms.

    Reads the sorted ``keys[N, K]``, ``order[N]``, ``count[N]`` and ``senders[N, K]``. Writes
    ``reverse[N, K]``.
    """
    if is_unwanted(wanted_ptr):
        return
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    slot = tl.arange(0, SLOTS)[None, :]
    edge = row * K + slot
    exists = (row < n_atoms) & (slot < K)
    used = slot < tl.load(count_ptr + row, row < n_atoms, other=0)
    key = tl.load(keys_ptr + edge, used, other=0)
    opposite = tl.load(order_ptr + row, row < n_atoms, other=0).to(tl.int64) << 24
    opposite |= 2 * NO_SHIFT - (key & THREE_BYTES) & THREE_BYTES  # negates each byte
    sender = tl.load(senders_ptr + edge, used, other=0).to(tl.int64)
    low = tl.zeros((ROWS, SLOTS), tl.int32)
    high = tl.load(count_ptr + sender, used, other=0)
    for _ in range(STEPS):
        middle = (low + high) // 2
        found = tl.load(keys_ptr + sender * K + middle, low < high, other=NO_EDGE)
        low = tl.where(found < opposite, middle + 1, low)
        high = tl.where(found < opposite, high, middle)
    reverse = sender * K + tl.minimum(low, K - 1)
    tl.store(reverse_ptr + edge, tl.where(used, reverse, edge).to(tl.int32), exists)


def complete_rows(found: Tensor, out: NeighborMatrix, wanted: Tensor | None) -> None:
    """Sort the keys of each row, and find the opposite of each edge.

    Parameters
    ----------
    found : int64 [N, K]
        Keys, see `find_edges`.
    out : NeighborMatrix
        Its ``order``, ``rank`` and ``count`` are read; ``senders``, ``shifts`` and ``reverse`` are
        written.
    wanted : int32 [], optional
        If given and 0, nothing is written.
    """
    n_atoms, capacity = found.shape
    slots = max(triton.next_power_of_2(capacity), 32)
    keys = torch.empty_like(found)
    _sort_kernel[(n_atoms,)](
        found,
        out.rank,
        out.count,
        keys,
        out.senders,
        out.shifts,
        wanted,
        K=capacity,
        SLOTS=slots,
        BLOCK=16,
        num_warps=max(slots // 128, 1),
    )
    rows = max(1024 // slots, 1)
    _reverse_kernel[(triton.cdiv(n_atoms, rows),)](
        keys,
        out.order,
        out.count,
        out.senders,
        out.reverse,
        wanted,
        n_atoms,
        K=capacity,
        ROWS=rows,
        SLOTS=slots,
        STEPS=capacity.bit_length(),
    )
