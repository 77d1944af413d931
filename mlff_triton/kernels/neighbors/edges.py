"""Edges within the cutoff and their geometry, from a neighbor matrix and the current positions.

    r_e = pos_i - pos_j - S_e @ cell      in float64, whatever the dtype of the network

The neighbor matrix holds all neighbors within cutoff plus skin at the time it was built. Each step
selects those within the cutoff, in the order of the rows, and reports in ``status`` whether the
matrix is still valid: see `mlff_triton.kernels.neighbors.motion`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common.checks import check_device
from mlff_triton.kernels.common.early_launch import early_launch, wait_for_previous
from mlff_triton.kernels.neighbors.motion import (
    load_columns,
    load_vector,
    motion,
    norm,
    subtract_product,
)
from mlff_triton.kernels.types.edges import Edges, Knots
from mlff_triton.kernels.types.neighbor_matrix import MAX_REACH, NeighborMatrix
from mlff_triton.kernels.types.status import (
    AGE,
    CONTACT,
    FAR,
    NOT_FINITE,
    OVERLAP,
    SHORT,
    STALE,
)

_AGE = tl.constexpr(AGE)
_CONTACT, _STALE, _OVERLAP, _SHORT, _FAR, _NOT_FINITE = (
    tl.constexpr(bit) for bit in (CONTACT, STALE, OVERLAP, SHORT, FAR, NOT_FINITE)
)
_MAX_REACH = tl.constexpr(MAX_REACH)
_MIN_DISTANCE = tl.constexpr(1e-3)  # Å, as in `mlff_triton.neighbors.neighbor_list`


@triton.jit
def unpack_shifts(shifts):
    """Unpack three float64 components from bytes, each plus 128: see `pack_shifts`."""
    return (
        ((shifts & 255) - 128).to(tl.float64),
        (((shifts >> 8) & 255) - 128).to(tl.float64),
        (((shifts >> 16) & 255) - 128).to(tl.float64),
    )


@triton.jit
def _status(moved, limit, closest, size, needed, capacity, reach):
    """Return the status of an atom; comparisons with NaN are false."""
    holds = moved <= limit
    age = tl.where(holds, tl.minimum(256 * moved / limit, _AGE), 0.0).to(tl.int32)
    status = tl.where(holds, age, _STALE)
    status |= tl.where(closest < _MIN_DISTANCE, _OVERLAP, 0)
    status |= tl.where(needed > capacity, _SHORT, 0)
    status |= tl.where(reach > _MAX_REACH, _FAR, 0)
    return tl.where(size < float("inf"), status, _NOT_FINITE)


@triton.jit
def _locate(distance, near, knots_ptr, intervals_ptr, n_knots, n_cells):
    """Return interval, fraction and width of distances [BLOCK], as `Knots.locate` does."""
    first = tl.load(knots_ptr)
    per_cell = n_cells / (tl.load(knots_ptr + n_knots - 1) - first)
    in_cell = ((tl.where(near, distance, first) - first) * per_cell).to(tl.int32)
    in_cell = tl.minimum(tl.maximum(in_cell, 0), n_cells - 1)
    interval = tl.load(intervals_ptr + in_cell, near, other=0)
    passed = distance - tl.load(knots_ptr + interval + 1, near, other=0.0) >= 0
    interval = tl.minimum(interval + passed.to(tl.int32), n_knots - 2)
    start = tl.load(knots_ptr + interval, near, other=0.0)
    width = tl.load(knots_ptr + interval + 1, near, other=1.0) - start
    fraction = tl.minimum(tl.maximum((distance - start) / width, 0.0), 1.0)
    return interval, fraction, width


@triton.jit
def _edges_kernel(
    positions_ptr,
    cell_ptr,
    system_ptr,
    built_ptr,
    inverse_ptr,
    order_ptr,
    begin_ptr,
    count_ptr,
    row_senders_ptr,
    row_shifts_ptr,
    needed_ptr,
    reach_ptr,
    knots_ptr,
    intervals_ptr,
    slot_end_ptr,
    senders_ptr,
    origin_ptr,
    interval_ptr,
    fraction_ptr,
    width_ptr,
    direction_ptr,
    distance_ptr,
    others_ptr,
    names_ptr,
    limits_ptr,
    status_ptr,
    capacity,
    n_slots,
    n_knots,
    n_cells,
    cutoff: tl.float64,
    radius: tl.float64,
    BLOCK: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    """Select the neighbors of an atom that are within the cutoff. Grid: one program per atom.

    Reads ``positions[N, 3]``, ``cell[B, 3, 3]``, ``system[N]``; ``built[N, 3]``,
    ``inverse[B, 3, 3]``, ``order[N]``, ``begin[N]``, or None if rows lie in the order of
    atoms, ``count[N]``, senders and shifts [N, K], ``needed`` and ``reach`` of the neighbor matrix;
    ``knots[n_knots]`` and ``intervals[n_cells]``. Writes ``slot_end[N]`` and the fields [slots] of
    `Edges` in the first slots of each row, and ``status[N]``. If ``knots`` is None, the position in
    radial tables is left out. If given, ``others[N]`` is joined with the status, ``names[N]`` are
    the senders to write, and with ``limits[N]``, the status reports neighbors closer than the sum
    of two of them.
    """
    wait_for_previous(EARLY_LAUNCH)
    atom = tl.program_id(0)
    user_atom = tl.load(order_ptr + atom).to(tl.int64)
    position = load_vector(positions_ptr, user_atom)
    count = tl.load(count_ptr + atom)
    system = tl.load(system_ptr + user_atom).to(tl.int64)
    cell = load_columns(cell_ptr + 9 * system)
    begin = atom * capacity if begin_ptr is None else tl.load(begin_ptr + atom)

    lane = tl.arange(0, BLOCK)
    live = lane < count
    slot = begin + lane
    sender = tl.load(row_senders_ptr + slot, live, other=0)
    shifts = tl.load(row_shifts_ptr + slot, live, other=0)
    user_sender = tl.load(order_ptr + sender, live, other=0).to(tl.int64)
    shift = unpack_shifts(shifts)
    vector = (
        position[0] - tl.load(positions_ptr + 3 * user_sender, live, other=0.0),
        position[1] - tl.load(positions_ptr + 3 * user_sender + 1, live, other=0.0),
        position[2] - tl.load(positions_ptr + 3 * user_sender + 2, live, other=0.0),
    )
    vector = subtract_product(vector, shift, cell)
    distance = norm(vector)
    near = live & (distance - cutoff < 0)

    out = begin + tl.cumsum(near.to(tl.int32), 0) - 1
    dtype = distance_ptr.dtype.element_ty
    stride = tl.cast(n_slots, tl.int64)
    name = sender if names_ptr is None else tl.load(names_ptr + sender, near, other=0)
    tl.store(senders_ptr + out, name, near)
    tl.store(origin_ptr + out, slot, near)
    if knots_ptr is not None:
        interval, fraction, width = _locate(
            distance, near, knots_ptr, intervals_ptr, n_knots, n_cells
        )
        tl.store(interval_ptr + out, interval, near)
        tl.store(fraction_ptr + out, fraction.to(dtype), near)
        tl.store(width_ptr + out, width.to(dtype), near)
    for d in tl.static_range(3):
        tl.store(direction_ptr + d * stride + out, (vector[d] / distance).to(dtype), near)
    tl.store(distance_ptr + out, distance.to(dtype), near)
    tl.store(slot_end_ptr + atom, begin + tl.sum(near.to(tl.int32)))

    built = load_vector(built_ptr, user_atom)
    inverse = inverse_ptr + 9 * system
    moved, limit = motion(position, cell, built, inverse, cutoff, radius)
    size = tl.abs(position[0]) + tl.abs(position[1]) + tl.abs(position[2])
    closest = tl.min(tl.where(live, distance, float("inf")))
    needed, reach = tl.load(needed_ptr), tl.load(reach_ptr)
    status = _status(moved, limit, closest, size, needed, capacity, reach)
    if limits_ptr is not None:
        limits = tl.load(limits_ptr + user_sender, live, other=0.0)
        room = distance - (tl.load(limits_ptr + user_atom) + limits)
        least = tl.min(tl.where(live, room, float("inf")))
        status |= tl.where(least < 0, _CONTACT, 0)
    if others_ptr is not None:
        status = tl.load(others_ptr + user_atom) | (status & ~_AGE)
    tl.store(status_ptr + user_atom, status)


def edges(
    positions: Tensor,
    cell: Tensor,
    system: Tensor,
    rows: NeighborMatrix,
    knots: Knots | None,
    cutoff: float,
    radius: float,
    dtype: torch.dtype,
    *,
    rows_ascend: bool = True,
    others: Tensor | None = None,
    names: Tensor | None = None,
    limits: Tensor | None = None,
) -> tuple[Edges, Tensor]:
    """Select the edges within the cutoff, and compute their geometry.

    Parameters
    ----------
    positions : float64 [N, 3]
        Current positions in the user's order, Å.
    cell : float64 [B, 3, 3]
        Current lattice vectors, Å.
    system : int32 [N]
        System of each atom.
    rows : NeighborMatrix
        Neighbors within the radius, when the matrix was built.
    knots : Knots, optional
        Knots of the radial tables. Without them, `Edges` have no position in tables.
    cutoff : float
        Cutoff of the model, Å.
    radius : float
        Cutoff plus skin, Å.
    dtype : torch.dtype
        Dtype of the geometry that the network reads.
    rows_ascend : bool
        False if atoms have been sorted again after their rows were built.
    others : int32 [N], optional
        Status of each atom in another list of the same age, up to rounding. Its problems and its
        age are joined with the problems of this one.
    names : int32 [N], optional
        Name of each sorted atom as a sender.
    limits : float64 [N], optional
        Length of each atom in the user's order, Å: neighbors closer than the sum of their lengths
        have the status ``CONTACT``.

    Returns
    -------
    edges : Edges
        Edges of the atoms, sorted as in the neighbor matrix.
    status : int32 [N]
        Status of each atom, see `mlff_triton.kernels.types.status`, in the user's order.
    """
    check_device(positions)
    n_atoms, capacity = rows.senders.shape
    found = _empty_edges(rows, dtype, located=knots is not None)
    status = torch.empty(n_atoms, dtype=torch.int32, device=positions.device)
    with torch.cuda.device_of(positions):
        _edges_kernel[(n_atoms,)](
            positions,
            cell,
            system,
            rows.positions,
            rows.inverse,
            rows.order,
            None if rows_ascend else rows.begin,
            rows.count,
            rows.senders,
            rows.shifts,
            rows.needed,
            rows.reach,
            None if knots is None else knots.positions,
            None if knots is None else knots.intervals,
            found.slot_end,
            found.senders,
            found.origin,
            found.interval,
            found.fraction,
            found.width,
            found.direction,
            found.distance,
            others,
            names,
            limits,
            status,
            capacity,
            n_atoms * capacity,
            0 if knots is None else len(knots.positions),
            0 if knots is None else len(knots.intervals),
            cutoff,
            radius,
            BLOCK=triton.next_power_of_2(capacity),
            num_warps=1 if capacity <= 128 else 4,
            **early_launch(positions),
        )
    return found, status


def _empty_edges(rows: NeighborMatrix, dtype: torch.dtype, *, located: bool) -> Edges:
    """Return edges for all slots of a neighbor matrix, uninitialized."""
    n_atoms, n_slots = len(rows.senders), rows.senders.numel()
    n_located = n_slots if located else 0

    def integers(size: int) -> Tensor:
        return rows.senders.new_empty(size, dtype=torch.int32)

    def floats(*shape: int) -> Tensor:
        return rows.senders.new_empty(shape, dtype=dtype)

    return Edges(
        slot_begin=rows.begin,
        slot_end=integers(n_atoms),
        senders=integers(n_slots),
        origin=integers(n_slots),
        reverse=rows.reverse,
        interval=integers(n_located),
        fraction=floats(n_located),
        width=floats(n_located),
        direction=floats(3, n_slots),
        distance=floats(n_slots),
    )
