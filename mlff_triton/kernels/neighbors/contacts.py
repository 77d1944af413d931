"""Check of a new neighbor matrix for neighbors that are too close.

Two atoms are too close if their distance is below the sum of their own limits. The result stays
until it is reset, so that the host need not wait for it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common.checks import check_device
from mlff_triton.kernels.neighbors.edges import unpack_shifts
from mlff_triton.kernels.neighbors.motion import load_columns, load_vector, norm, subtract_product
from mlff_triton.kernels.types.neighbor_matrix import NeighborMatrix


@triton.jit
def _contacts_kernel(
    positions_ptr,
    cell_ptr,
    system_ptr,
    limits_ptr,
    order_ptr,
    begin_ptr,
    count_ptr,
    senders_ptr,
    shifts_ptr,
    clock_ptr,
    partner_ptr,
    distance_ptr,
    step_ptr,
    BLOCK: tl.constexpr,
):
    """Record a neighbor that is too close. Grid: one program per atom.

    Reads ``positions[N, 3]``, ``cell[B, 3, 3]``, ``system[N]``, ``limits[N]``, the neighbor matrix
    and ``clock``. For such atoms, writes 1 plus the index of one of them to ``partner[N]``, its
    ``distance[N]``, and to ``step`` the step that these positions belong to.
    """
    atom = tl.program_id(0)
    user_atom = tl.load(order_ptr + atom).to(tl.int64)
    position = load_vector(positions_ptr, user_atom)
    cell = load_columns(cell_ptr + 9 * tl.load(system_ptr + user_atom).to(tl.int64))
    lane = tl.arange(0, BLOCK)
    live = lane < tl.load(count_ptr + atom)
    slot = tl.load(begin_ptr + atom) + lane
    sender = tl.load(senders_ptr + slot, live, other=0)
    other = tl.load(order_ptr + sender, live, other=0).to(tl.int64)
    shift = unpack_shifts(tl.load(shifts_ptr + slot, live, other=0))
    vector = (
        position[0] - tl.load(positions_ptr + 3 * other, live, other=0.0),
        position[1] - tl.load(positions_ptr + 3 * other + 1, live, other=0.0),
        position[2] - tl.load(positions_ptr + 3 * other + 2, live, other=0.0),
    )
    distance = norm(subtract_product(vector, shift, cell))
    limit = tl.load(limits_ptr + user_atom) + tl.load(limits_ptr + other, live, other=0.0)
    close = tl.where(live & (distance < limit), other.to(tl.int32) + 1, 0)
    partner = tl.max(close)
    if partner > 0:
        tl.store(partner_ptr + user_atom, partner)
        nearest = tl.min(tl.where(close == partner, distance, float("inf")))
        tl.store(distance_ptr + user_atom, nearest)
        if tl.load(step_ptr) == 0:  # programs that find this at the same time store the same value
            tl.store(step_ptr, tl.load(clock_ptr) + 1)


def note_contacts(
    positions: Tensor,
    cell: Tensor,
    system: Tensor,
    limits: Tensor,
    rows: NeighborMatrix,
    clock: Tensor,
    partner: Tensor,
    distance: Tensor,
    step: Tensor,
) -> None:
    """Record atoms that are too close to a neighbor, without waiting.

    Parameters
    ----------
    positions : float64 [N, 3]
        Positions in the user's order, Å.
    cell : float64 [B, 3, 3]
        Lattice vectors, Å.
    system : int32 [N]
        System of each atom.
    limits : float64 [N]
        Own limit of each atom, Å.
    rows : NeighborMatrix
        Neighbors of these positions.
    clock : int64 [...]
        Steps done before the one that positions belong to, in the first element.
    partner : int32 [N]
        Set to 1 plus the index of the neighbor, for atoms that are too close to one.
    distance : float64 [N]
        Set to their distance, Å.
    step : int64 []
        Set to the step in which that happens, if it is 0.
    """
    check_device(positions)
    n_atoms, capacity = rows.senders.shape
    with torch.cuda.device_of(positions):
        _contacts_kernel[(n_atoms,)](
            positions,
            cell,
            system,
            limits,
            rows.order,
            rows.begin,
            rows.count,
            rows.senders,
            rows.shifts,
            clock,
            partner,
            distance,
            step,
            BLOCK=triton.next_power_of_2(capacity),
            num_warps=1 if capacity <= 128 else 4,
        )
