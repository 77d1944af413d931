"""Neighbor rows and positions -> the edges within the cutoff, with their geometry, at every step.

    r_e = pos_i - pos_j - S_e @ cell      in float64, whatever the network computes in

Rows hold neighbors up to cutoff plus skin, as they were when the list was built. One program an
atom picks those that are within the cutoff now, in the order of the row, and notes trouble in
``status``.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common.checks import check_device
from mlff_triton.kernels.types.edges import Edges, Knots
from mlff_triton.kernels.types.neighbor_matrix import NeighborMatrix

STALE, OVERLAP, NOT_FINITE = 1, 2, 4
"""Bits of an atom's status, the worst one highest."""

_STALE, _OVERLAP, _NOT_FINITE = (tl.constexpr(bit) for bit in (STALE, OVERLAP, NOT_FINITE))
_MIN_DISTANCE = tl.constexpr(1e-3)  # Å, as in `mlff_triton.neighbors.neighbor_list`


@triton.jit
def _edges_kernel(
    positions_ptr,
    built_ptr,
    cell_ptr,
    strain_ptr,
    limit_ptr,
    system_ptr,
    order_ptr,
    count_ptr,
    row_senders_ptr,
    row_shifts_ptr,
    knots_ptr,
    intervals_ptr,
    end_ptr,
    senders_ptr,
    origin_ptr,
    interval_ptr,
    fraction_ptr,
    width_ptr,
    direction_ptr,
    distance_ptr,
    status_ptr,
    capacity,
    n_slots,
    n_knots,
    n_cells,
    cutoff: tl.float64,
    BLOCK: tl.constexpr,
):
    atom = tl.program_id(0)
    me = tl.load(order_ptr + atom).to(tl.int64)
    x = tl.load(positions_ptr + 3 * me)
    y = tl.load(positions_ptr + 3 * me + 1)
    z = tl.load(positions_ptr + 3 * me + 2)
    count = tl.load(count_ptr + atom)
    system = tl.load(system_ptr + me).to(tl.int64)
    cell = cell_ptr + 9 * system
    begin = atom * capacity

    lane = tl.arange(0, BLOCK)
    live = lane < count
    slot = begin + lane
    sender = tl.load(row_senders_ptr + slot, live, other=0)
    shifts = tl.load(row_shifts_ptr + slot, live, other=0)
    other = tl.load(order_ptr + sender, live, other=0).to(tl.int64)
    # A shift is three bytes, each plus 128: see `pack_shifts`.
    sx = ((shifts & 255) - 128).to(tl.float64)
    sy = (((shifts >> 8) & 255) - 128).to(tl.float64)
    sz = (((shifts >> 16) & 255) - 128).to(tl.float64)
    dx = x - tl.load(positions_ptr + 3 * other, live, other=0.0)
    dy = y - tl.load(positions_ptr + 3 * other + 1, live, other=0.0)
    dz = z - tl.load(positions_ptr + 3 * other + 2, live, other=0.0)
    dx -= sx * tl.load(cell) + sy * tl.load(cell + 3) + sz * tl.load(cell + 6)
    dy -= sx * tl.load(cell + 1) + sy * tl.load(cell + 4) + sz * tl.load(cell + 7)
    dz -= sx * tl.load(cell + 2) + sy * tl.load(cell + 5) + sz * tl.load(cell + 8)
    distance = tl.sqrt(dx * dx + dy * dy + dz * dz)
    near = live & (distance - cutoff < 0)

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

    out = begin + tl.cumsum(near.to(tl.int32), 0) - 1
    dtype = fraction_ptr.dtype.element_ty
    stride = tl.cast(n_slots, tl.int64)
    tl.store(senders_ptr + out, sender, near)
    tl.store(origin_ptr + out, slot, near)
    tl.store(interval_ptr + out, interval, near)
    tl.store(fraction_ptr + out, fraction.to(dtype), near)
    tl.store(width_ptr + out, width.to(dtype), near)
    tl.store(direction_ptr + out, (dx / distance).to(dtype), near)
    tl.store(direction_ptr + stride + out, (dy / distance).to(dtype), near)
    tl.store(direction_ptr + 2 * stride + out, (dz / distance).to(dtype), near)
    tl.store(distance_ptr + out, distance.to(dtype), near)
    tl.store(end_ptr + atom, begin + tl.sum(near.to(tl.int32)))

    strain = strain_ptr + 9 * system
    bx = tl.load(built_ptr + 3 * me)
    by = tl.load(built_ptr + 3 * me + 1)
    bz = tl.load(built_ptr + 3 * me + 2)
    mx = x - (bx * tl.load(strain) + by * tl.load(strain + 3) + bz * tl.load(strain + 6))
    my = y - (bx * tl.load(strain + 1) + by * tl.load(strain + 4) + bz * tl.load(strain + 7))
    mz = z - (bx * tl.load(strain + 2) + by * tl.load(strain + 5) + bz * tl.load(strain + 8))
    moved = tl.sqrt(mx * mx + my * my + mz * mz)
    size = tl.abs(x) + tl.abs(y) + tl.abs(z)
    closest = tl.min(tl.where(live, distance, float("inf")))
    status = tl.where(moved > tl.load(limit_ptr + system), _STALE, 0)
    status |= tl.where(closest < _MIN_DISTANCE, _OVERLAP, 0)
    status = tl.where(size < float("inf"), status, _NOT_FINITE)  # comparisons with NaN are false
    tl.store(status_ptr + me, status)


def edges(
    positions: Tensor,
    built: Tensor,
    cell: Tensor,
    strain: Tensor,
    limit: Tensor,
    system: Tensor,
    rows: NeighborMatrix,
    knots: Knots,
    cutoff: float,
    dtype: torch.dtype,
) -> tuple[Edges, Tensor]:
    """Edges within the cutoff.

    Parameters
    ----------
    positions, built : float64 [N, 3]
        Positions now and when the rows were built, in the user's order, Å.
    cell, strain : float64 [B, 3, 3]
        Lattice vectors now, and the matrix that took those of the rows to them.
    limit : float64 [B]
        How far an atom may have moved, apart from strain, before the rows are stale, Å.
    system : int32 [N]
        System of each atom.
    rows : NeighborMatrix
        Neighbors within cutoff and skin.
    knots : Knots
        Knots of the radial tables.
    cutoff : float
        Å.
    dtype : torch.dtype
        Of the geometry that the network reads.

    Returns
    -------
    edges : Edges
        Of the atoms sorted as the rows are.
    status : int32 [N]
        In the user's order: `STALE`, `OVERLAP` and `NOT_FINITE`, or 0.
    """
    check_device(positions)
    n_atoms, capacity = rows.senders.shape
    n_slots = n_atoms * capacity
    device = positions.device

    def integers(size: int) -> Tensor:
        return torch.empty(size, dtype=torch.int32, device=device)

    def floats(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    found = Edges(
        slot_begin=torch.arange(0, n_slots, capacity, dtype=torch.int32, device=device),
        slot_end=integers(n_atoms),
        senders=integers(n_slots),
        origin=integers(n_slots),
        reverse=rows.reverse,
        interval=integers(n_slots),
        fraction=floats(n_slots),
        width=floats(n_slots),
        direction=floats(3, n_slots),
        distance=floats(n_slots),
    )
    status = integers(n_atoms)
    with torch.cuda.device_of(positions):
        _edges_kernel[(n_atoms,)](
            positions,
            built,
            cell,
            strain,
            limit,
            system,
            rows.order,
            rows.count,
            rows.senders,
            rows.shifts,
            knots.positions,
            knots.intervals,
            found.slot_end,
            found.senders,
            found.origin,
            found.interval,
            found.fraction,
            found.width,
            found.direction,
            found.distance,
            status,
            capacity,
            n_slots,
            len(knots.positions),
            len(knots.intervals),
            cutoff,
            BLOCK=triton.next_power_of_2(capacity),
            num_warps=1 if capacity <= 128 else 4,
        )
    return found, status
