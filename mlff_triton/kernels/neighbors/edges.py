"""Edges within the cutoff and their geometry, from a neighbor matrix and the current positions.

    r_e = pos_i - pos_j - S_e @ cell      in float64, whatever the dtype of the network

The neighbor matrix holds all neighbors within cutoff plus skin at the time it was built. Each step
selects those within the cutoff, in the order of the rows, and reports problems in ``status``.
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
"""Bits of an atom's status, the most severe one highest."""

_STALE, _OVERLAP, _NOT_FINITE = (tl.constexpr(bit) for bit in (STALE, OVERLAP, NOT_FINITE))
_MIN_DISTANCE = tl.constexpr(1e-3)  # Å, as in `mlff_triton.neighbors.neighbor_list`


@triton.jit
def _load_vector(pointer, index):
    """Load the three components of one vector of [N, 3]."""
    return (
        tl.load(pointer + 3 * index),
        tl.load(pointer + 3 * index + 1),
        tl.load(pointer + 3 * index + 2),
    )


@triton.jit
def _subtract_product(a, b, matrix_ptr):
    """Return ``a - b @ matrix`` for vectors a, b and a 3x3 matrix in memory."""
    m = matrix_ptr
    return (
        a[0] - _dot(b, (tl.load(m), tl.load(m + 3), tl.load(m + 6))),
        a[1] - _dot(b, (tl.load(m + 1), tl.load(m + 4), tl.load(m + 7))),
        a[2] - _dot(b, (tl.load(m + 2), tl.load(m + 5), tl.load(m + 8))),
    )


@triton.jit
def _dot(a, b):
    """Return the dot product of vectors, rounded in the same way in every kernel.

    In ``x * x + y * y`` the compiler chooses which product to fuse with the sum, and may choose
    differently for another BLOCK. Geometry must not depend on the capacity of the matrix.
    """
    return tl.fma(a[2], b[2], tl.fma(a[1], b[1], a[0] * b[0]))


@triton.jit
def _unpack_shifts(shifts):
    """Unpack three float64 components from bytes, each plus 128: see `pack_shifts`."""
    return (
        ((shifts & 255) - 128).to(tl.float64),
        (((shifts >> 8) & 255) - 128).to(tl.float64),
        (((shifts >> 16) & 255) - 128).to(tl.float64),
    )


@triton.jit
def _norm(v):
    """Return the length of vectors."""
    return tl.sqrt(_dot(v, v))


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
    slot_end_ptr,
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
    """Select the neighbors of an atom that are within the cutoff. Grid: one program per atom.

    Reads ``positions[N, 3]``, ``built[N, 3]``, ``cell[B, 3, 3]``, ``strain[B, 3, 3]``,
    ``limit[B]``, ``system[N]``; ``order[N]``, ``count[N]``, senders and shifts [N, K] of the
    neighbor matrix; ``knots[n_knots]`` and ``intervals[n_cells]``. Writes ``slot_end[N]`` and the
    fields [slots] of `Edges` in the first slots of each row, and ``status[N]``.
    """
    atom = tl.program_id(0)
    user_atom = tl.load(order_ptr + atom).to(tl.int64)
    position = _load_vector(positions_ptr, user_atom)
    count = tl.load(count_ptr + atom)
    system = tl.load(system_ptr + user_atom).to(tl.int64)
    cell = cell_ptr + 9 * system
    begin = atom * capacity

    lane = tl.arange(0, BLOCK)
    live = lane < count
    slot = begin + lane
    sender = tl.load(row_senders_ptr + slot, live, other=0)
    shifts = tl.load(row_shifts_ptr + slot, live, other=0)
    user_sender = tl.load(order_ptr + sender, live, other=0).to(tl.int64)
    shift = _unpack_shifts(shifts)
    vector = (
        position[0] - tl.load(positions_ptr + 3 * user_sender, live, other=0.0),
        position[1] - tl.load(positions_ptr + 3 * user_sender + 1, live, other=0.0),
        position[2] - tl.load(positions_ptr + 3 * user_sender + 2, live, other=0.0),
    )
    vector = _subtract_product(vector, shift, cell)
    distance = _norm(vector)
    near = live & (distance - cutoff < 0)
    interval, fraction, width = _locate(distance, near, knots_ptr, intervals_ptr, n_knots, n_cells)

    out = begin + tl.cumsum(near.to(tl.int32), 0) - 1
    dtype = fraction_ptr.dtype.element_ty
    stride = tl.cast(n_slots, tl.int64)
    tl.store(senders_ptr + out, sender, near)
    tl.store(origin_ptr + out, slot, near)
    tl.store(interval_ptr + out, interval, near)
    tl.store(fraction_ptr + out, fraction.to(dtype), near)
    tl.store(width_ptr + out, width.to(dtype), near)
    for d in tl.static_range(3):
        tl.store(direction_ptr + d * stride + out, (vector[d] / distance).to(dtype), near)
    tl.store(distance_ptr + out, distance.to(dtype), near)
    tl.store(slot_end_ptr + atom, begin + tl.sum(near.to(tl.int32)))

    strain = strain_ptr + 9 * system
    built = _load_vector(built_ptr, user_atom)
    moved = _norm(_subtract_product(position, built, strain))
    size = tl.abs(position[0]) + tl.abs(position[1]) + tl.abs(position[2])
    closest = tl.min(tl.where(live, distance, float("inf")))
    status = tl.where(moved > tl.load(limit_ptr + system), _STALE, 0)
    status |= tl.where(closest < _MIN_DISTANCE, _OVERLAP, 0)
    status = tl.where(size < float("inf"), status, _NOT_FINITE)  # comparisons with NaN are false
    tl.store(status_ptr + user_atom, status)


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
    """Select the edges within the cutoff, and compute their geometry.

    Parameters
    ----------
    positions, built : float64 [N, 3]
        Positions now and when the neighbor matrix was built, in the user's order, Å.
    cell, strain : float64 [B, 3, 3]
        Lattice vectors now, and the matrix that maps those at the time of building to them.
    limit : float64 [B]
        Largest displacement of an atom, apart from strain, before the matrix is stale, Å.
    system : int32 [N]
        System of each atom.
    rows : NeighborMatrix
        Neighbors within cutoff plus skin.
    knots : Knots
        Knots of the radial tables.
    cutoff : float
        Cutoff of the model, Å.
    dtype : torch.dtype
        Dtype of the geometry that the network reads.

    Returns
    -------
    edges : Edges
        Edges of the atoms, sorted as in the neighbor matrix.
    status : int32 [N]
        Bits `STALE`, `OVERLAP` and `NOT_FINITE` of each atom, in the user's order.
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
