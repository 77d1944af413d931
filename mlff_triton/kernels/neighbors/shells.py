"""Shells of atoms around the own atoms of a part, along the edges of a neighbor matrix.

Own atoms have 0 hops. Any other atom has one hop more than its neighbor with the fewest. Atoms are
sorted by hops, so that those with at most h of them are the first ``rows[h]``, for each h up to the
number of layers L. The ``rows`` have a reserve, so that they need not follow every change. It is
filled with padding: atoms without edges.

Atoms with more hops follow. They, too, may be padding.

Where processes exchange tensors, own atoms are the only shell, and the rows of the tensors of all
other atoms follow it: see `name_rows`.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.types.neighbor_matrix import NeighborMatrix

UNFIT = 1 << 30
"""Number of neighbors reported as needed if shells have outgrown their rows."""


@triton.jit
def _start_kernel(
    order_ptr, n_own_ptr, n_atoms_ptr, hops_ptr, n_rows, FAR: tl.constexpr, BLOCK: tl.constexpr
):
    """Find own atoms and padding. Grid: one program per BLOCK atoms.

    Reads ``order[N]``, the number of own atoms, and that of all atoms without padding. Writes
    ``hops[N]``: 0, FAR for other atoms, and FAR + 1 for padding.
    """
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    atom = tl.load(order_ptr + row, row < n_rows, other=0)
    hops = tl.where(atom < tl.load(n_own_ptr), 0, FAR)
    hops = tl.where(atom < tl.load(n_atoms_ptr), hops, FAR + 1)
    tl.store(hops_ptr + row, hops, row < n_rows)


@triton.jit
def _hop_kernel(
    count_ptr, senders_ptr, hops_ptr, h, FAR: tl.constexpr, K: tl.constexpr, SLOTS: tl.constexpr
):
    """Find the atoms that are h + 1 hops away. Grid: one program per atom.

    Reads ``count[N]`` and ``senders[N, K]``, and updates ``hops[N]``. Other programs may do so at
    the same time, but none writes or overwrites an h.
    """
    row = tl.program_id(0).to(tl.int64)
    if tl.load(hops_ptr + row) == FAR:
        slot = tl.arange(0, SLOTS)
        used = slot < tl.load(count_ptr + row)
        sender = tl.load(senders_ptr + row * K + slot, used, other=0)
        hops = tl.load(hops_ptr + sender, used, other=FAR)
        if tl.min(tl.where(hops == h, 0, 1)) == 0:
            tl.store(hops_ptr + row, h + 1)


@triton.jit
def _permute_kernel(
    sorted_ptr,
    old_order_ptr,
    old_count_ptr,
    needed_ptr,
    order_ptr,
    rank_ptr,
    begin_ptr,
    count_ptr,
    new_row_ptr,
    n_rows,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Gather a matrix's data of atoms in another order. Grid: one program per BLOCK atoms.

    Reads the old index ``sorted[N]``, int64, of each atom, the old ``order[N]`` and ``count[N]``,
    and ``needed``. Writes ``order[N]``, ``rank[N]``, ``begin[N]``, ``count[N]``, and the new index
    ``new_row[N]`` of each atom in the old order. An incomplete matrix loses all edges, because they
    might lead to atoms outside the shells that a layer has computed.
    """
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = row < n_rows
    old = tl.load(sorted_ptr + row, mask, other=0)
    atom = tl.load(old_order_ptr + old, mask, other=0)
    tl.store(order_ptr + row, atom, mask)
    tl.store(rank_ptr + atom, row, mask)
    tl.store(begin_ptr + row, (old * K).to(tl.int32), mask)
    is_complete = tl.load(needed_ptr) <= K
    tl.store(count_ptr + row, tl.load(old_count_ptr + old, mask & is_complete, other=0), mask)
    tl.store(new_row_ptr + old, row, mask)


@triton.jit
def _rename_kernel(old_ptr, new_row_ptr, senders_ptr, n_slots, BLOCK: tl.constexpr):
    """Renumber the senders of all slots. Grid: one program per BLOCK slots.

    Reads the old ``senders[slots]`` and ``new_row[N]``. Writes ``senders[slots]``.
    """
    slot = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    sender = tl.load(old_ptr + slot, slot < n_slots, other=0)
    row = tl.load(new_row_ptr + sender, slot < n_slots, other=0)
    tl.store(senders_ptr + slot, row, slot < n_slots)


@triton.jit
def _names_kernel(
    order_ptr, rank_ptr, rows_ptr, n_own_ptr, names_ptr, n_rows, n_first, BLOCK: tl.constexpr
):
    """Look up the row of each atom. Grid: one program per BLOCK atoms.

    Reads ``order[N]``, ``rank[N]``, ``rows[N]`` and the number of own atoms. Writes ``names[N]``.
    """
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    atom = tl.load(order_ptr + place, place < n_rows, other=0)
    row = tl.load(rows_ptr + atom, place < n_rows, other=0)
    n_own = tl.load(n_own_ptr)
    is_own = row < n_own
    own = tl.load(rank_ptr + row, is_own, other=0)
    tl.store(names_ptr + place, tl.where(is_own, own, n_first + row - n_own), place < n_rows)


def count_hops(
    found: NeighborMatrix, n_own: Tensor, n_atoms: Tensor, n_layers: int
) -> tuple[Tensor, Tensor]:
    """Count the hops from each atom to the nearest own atom, without waiting for the GPU.

    Parameters
    ----------
    found : NeighborMatrix
        Neighbors of the atoms. Own atoms come first in the user's order, and padding last.
    n_own, n_atoms : int32 [1]
        Number of own atoms, and number of all atoms without padding.
    n_layers : int
        Number of layers L.

    Returns
    -------
    hops : int32 [N]
        In the order of the matrix: L + 1 for all atoms more than L hops away, L + 2 for padding.
    counts : int64 [L + 3]
        Number of atoms for each number of hops.
    """
    n_rows, far = len(found.order), n_layers + 1
    hops = torch.empty_like(found.order)
    grid = (triton.cdiv(n_rows, 256),)
    _start_kernel[grid](found.order, n_own, n_atoms, hops, n_rows, FAR=far, BLOCK=256)
    slots = max(triton.next_power_of_2(found.capacity), 32)
    for h in range(n_layers):
        given = found.count, found.senders, hops, h
        _hop_kernel[(n_rows,)](*given, FAR=far, K=found.capacity, SLOTS=slots, num_warps=1)
    kinds = torch.arange(n_layers + 3, dtype=torch.int32, device=hops.device)
    return hops, (hops == kinds[:, None]).sum(1)


def sort_by_hops(
    found: NeighborMatrix,
    hops: Tensor,
    counts: Tensor,
    sizes: Tensor,
    out: NeighborMatrix,
    shorter: tuple[NeighborMatrix, NeighborMatrix] | None = None,
) -> None:
    """Sort atoms stably by hops, without waiting for the GPU.

    Parameters
    ----------
    found : NeighborMatrix
        Neighbors of the atoms.
    hops, counts : int32 [N], int64 [L + 3]
        From `count_hops`.
    sizes : int64 [L + 1]
        Rows of the shells of atoms with 0 to L hops, filled up with padding.
    out : NeighborMatrix
        From `renumbered`. Its ``needed`` is `UNFIT` if a shell has more atoms than rows, or if
        padding does not suffice to fill them. In this case, and if ``found`` is incomplete, it has
        no edges.
    shorter : (NeighborMatrix, NeighborMatrix), optional
        Neighbors of the same atoms within another radius, and the output for them.
    """
    n_shells = len(sizes)
    free = (sizes - counts[:n_shells]).clamp(min=0)
    is_padding = hops == n_shells + 1
    number = is_padding.cumsum(0) - 1
    shell = torch.searchsorted(free.cumsum(0), number, right=True, out_int32=True)
    by_hops = torch.sort(torch.where(is_padding, shell, hops), stable=True).indices
    fits = (counts[:n_shells] <= sizes).all() & (free.sum() <= counts[-1])
    for old, new in ((found, out), *([] if shorter is None else [shorter])):
        new.needed.copy_(torch.where(fits, old.needed, UNFIT))
        _sort(old, by_hops, new)


def _sort(found: NeighborMatrix, order: Tensor, out: NeighborMatrix) -> None:
    """Write a matrix with atoms in another order, int64 [N], given its ``needed``."""
    n_rows, new_row = len(order), torch.empty_like(found.order)
    _permute_kernel[(triton.cdiv(n_rows, 256),)](
        order,
        found.order,
        found.count,
        out.needed,
        out.order,
        out.rank,
        out.begin,
        out.count,
        new_row,
        n_rows,
        K=found.capacity,
        BLOCK=256,
    )
    n_slots = found.senders.numel()
    grid = (triton.cdiv(n_slots, 1024),)
    _rename_kernel[grid](found.senders, new_row, out.senders, n_slots, BLOCK=1024)


def name_rows(
    matrix: NeighborMatrix, rows: Tensor, n_own: Tensor, n_first: int, names: Tensor
) -> None:
    """Find the row of tensors that each sorted atom has, without waiting for the GPU.

    Own atoms have the rows of their positions in the order. The rows of other atoms follow the
    ``n_first`` rows of own atoms and their padding.

    Parameters
    ----------
    matrix : NeighborMatrix
        Own atoms come first in it.
    rows : int32 [N]
        Of each atom in the user's order: the own atom that it is a copy of, or ``n_own`` plus its
        place among the rows of other parts.
    n_own : int32 [1]
        Number of own atoms.
    n_first : int
        Rows of own atoms, with their padding.
    names : int32 [N]
        Output: row of each atom in the order of the matrix.
    """
    n_rows = len(rows)
    grid = (triton.cdiv(n_rows, 256),)
    given = matrix.order, matrix.rank, rows, n_own, names, n_rows, n_first
    _names_kernel[grid](*given, BLOCK=256)


def renumbered(found: NeighborMatrix) -> NeighborMatrix:
    """Return a matrix that shares the rows of another one, for `sort_by_hops` to fill."""
    names = ("order", "rank", "begin", "count", "senders", "needed")
    return replace(found, **{name: torch.zeros_like(getattr(found, name)) for name in names})
