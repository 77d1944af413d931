"""The neighbor list on the GPU, in rows of equal length.

Edge ``(i, j, S)`` says that atom ``i`` receives from the image ``S`` of atom ``j``, for

    |pos_i - pos_j - S @ cell| < radius

Space is cut into bins by planes parallel to the faces of the cell. Counted from the origin, an atom
lies in bin ``g`` of a direction, and a pair within the radius is at most ``m`` bins apart. The bins
are numbered modulo ``n``, so that ``g = w n + c`` is the bin ``c`` of the image ``w``:

- periodic: ``n`` bins span the cell. An atom ``j`` met ``o`` bins further on than atom ``i`` is the
  image ``S = floor((g_i + o) / n) - w_j``. In a large cell ``m = 1``; a cell lower than the radius
  is a single bin and has a larger ``m``. Small and large systems are thus one case.
- open: bins ``n`` apart share a number. That costs a look at atoms which are too far, and no pair
  is seen twice as long as ``2 m + 1 <= n``. A small system is a single bin: ``n = 1``, ``m = 0``.

Whether a pair is within the radius is decided on the positions as given, in float64, by the same
operations up to the sign for both of its directions. The bins only propose, and do not change what
is found. Nothing depends on the order in which programs run.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.common.checks import check_device, check_shape
from mlff_triton.kernels.types.neighbor_matrix import (
    MAX_REACH,
    NeighborMatrix,
    pack_shifts,
    unpack_shifts,
)

__all__ = ["MAX_REACH", "NeighborMatrix", "build_rows", "pack_shifts", "unpack_shifts"]

ATOMS_PER_BIN = tl.constexpr(8)  # at least, on average: a bound for the number of bins
SLACK = tl.constexpr(1e-6)  # of a bin, far above the rounding of any coordinate
NOWHERE = tl.constexpr(1 << 29)  # image of an atom beyond so many bins, or at NaN
NO_EDGE = tl.constexpr((1 << 63) - 1)
NO_SHIFT = tl.constexpr(0x808080)  # three bytes, each plus 128
THREE_BYTES = tl.constexpr(0xFFFFFF)
FIND_ROWS = 2  # of one warp, which shares what it loads; more do not fit its registers
MAX_CAPACITY = 1024


@triton.jit
def _first_bin(first_atom, system):
    """Number of a system's first bin: systems have at most ``max(1, N // 8)``, so share none."""
    return first_atom // ATOMS_PER_BIN + system


@triton.jit
def _plane(cell_ptr, DIRECTION: tl.constexpr):
    """Gradient of one fractional coordinate, and the distance between the two faces of the cell."""
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
    cell_ptr, pbc_ptr, first_atoms_ptr, planes_ptr, bins_ptr, spans_ptr, radius: tl.float64
):
    """Bins ``n`` and span ``m`` of each direction, and planes: ``g = floor(pos . plane)``."""
    system = tl.program_id(0).to(tl.int64)
    n_atoms = tl.load(first_atoms_ptr + system + 1) - tl.load(first_atoms_ptr + system)
    room = tl.maximum(n_atoms // ATOMS_PER_BIN, 1).to(tl.float64)
    least = radius * (1 + SLACK)
    n_open = 0
    for d in tl.static_range(3):
        x, y, z, height = _plane(cell_ptr + 9 * system, d)
        scale = height / least
        if tl.load(pbc_ptr + 3 * system + d) != 0:
            scale = tl.minimum(tl.maximum(tl.floor(scale), 1.0), room)
            room = tl.floor(room / scale)
            tl.store(bins_ptr + 3 * system + d, scale.to(tl.int32))
            tl.store(spans_ptr + 3 * system + d, tl.ceil(least * scale / height).to(tl.int32))
        else:
            n_open += 1
        tl.store(planes_ptr + 9 * system + 3 * d, x * scale)
        tl.store(planes_ptr + 9 * system + 3 * d + 1, y * scale)
        tl.store(planes_ptr + 9 * system + 3 * d + 2, z * scale)
    # The small summand keeps a root that is whole, such as that of 27, from being rounded down.
    share = tl.floor(tl.exp(tl.log(room) / tl.maximum(n_open, 1)) + 1e-9)
    for d in tl.static_range(3):
        if tl.load(pbc_ptr + 3 * system + d) == 0:
            tl.store(bins_ptr + 3 * system + d, tl.where(share < 3, 1, share).to(tl.int32))
            tl.store(spans_ptr + 3 * system + d, tl.where(share < 3, 0, 1))


@triton.jit
def _assign_kernel(
    positions_ptr,
    pbc_ptr,
    batch_ptr,
    first_atoms_ptr,
    planes_ptr,
    bins_ptr,
    bin_of_atom_ptr,
    images_ptr,
    n_atoms,
    BLOCK: tl.constexpr,
):
    """The bin of each atom, numbered through all systems, and the image ``w`` it lies in."""
    atom = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = atom < n_atoms
    system = tl.load(batch_ptr + atom, mask, other=0)
    x = tl.load(positions_ptr + 3 * atom, mask, other=0.0)
    y = tl.load(positions_ptr + 3 * atom + 1, mask, other=0.0)
    z = tl.load(positions_ptr + 3 * atom + 2, mask, other=0.0)
    number = tl.zeros((BLOCK,), tl.int64)
    for d in tl.static_range(3):
        plane = planes_ptr + 9 * system + 3 * d
        g = tl.load(plane, mask, other=0.0) * x
        g += tl.load(plane + 1, mask, other=0.0) * y
        g += tl.load(plane + 2, mask, other=0.0) * z
        somewhere = tl.abs(g) < NOWHERE
        g = tl.floor(tl.where(somewhere, g, 0.0))
        bins = tl.load(bins_ptr + 3 * system + d, mask, other=1)
        w = tl.floor(g / bins.to(tl.float64))
        number = number * bins + (g - w * bins).to(tl.int64)
        periodic = tl.load(pbc_ptr + 3 * system + d, mask, other=0) != 0
        image = tl.where(periodic, w.to(tl.int32), 0)
        tl.store(images_ptr + 3 * atom + d, tl.where(somewhere, image, NOWHERE), mask)
    number += _first_bin(tl.load(first_atoms_ptr + system, mask, other=0), system)
    tl.store(bin_of_atom_ptr + atom, number.to(tl.int32), mask)


@triton.jit
def _arrange_kernel(
    positions_ptr,
    images_ptr,
    sorted_ptr,
    order_ptr,
    rank_ptr,
    sorted_positions_ptr,
    sorted_images_ptr,
    n_atoms,
    BLOCK: tl.constexpr,
):
    """Atoms by their bins, component first."""
    rank = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = rank < n_atoms
    atom = tl.load(sorted_ptr + rank, mask, other=0)
    tl.store(order_ptr + rank, atom.to(tl.int32), mask)
    tl.store(rank_ptr + atom, rank.to(tl.int32), mask)
    for d in tl.static_range(3):
        position = tl.load(positions_ptr + 3 * atom + d, mask)
        image = tl.load(images_ptr + 3 * atom + d, mask)
        tl.store(sorted_positions_ptr + d * tl.cast(n_atoms, tl.int64) + rank, position, mask)
        tl.store(sorted_images_ptr + d * tl.cast(n_atoms, tl.int64) + rank, image, mask)


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
    spans_ptr,
    count_ptr,
    tallies_ptr,
    keys_ptr,
    n_atoms,
    squared_radius: tl.float64,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The edges of some atoms as keys ``(j, S)``, in any order; their number, and their reach.

    Atoms of one bin share the bins to look through, and those along the last direction are
    adjacent in memory.
    """
    first = tl.program_id(0).to(tl.int64) * ROWS
    atoms = tl.cast(n_atoms, tl.int64)
    i = first + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
    exists = i < atoms
    xi = tl.load(positions_ptr + i, exists)
    yi = tl.load(positions_ptr + atoms + i, exists)
    zi = tl.load(positions_ptr + 2 * atoms + i, exists)
    wa = tl.load(images_ptr + i, exists)
    wb = tl.load(images_ptr + atoms + i, exists)
    wc = tl.load(images_ptr + 2 * atoms + i, exists)
    bin_of_i = tl.load(bin_of_atom_ptr + i, exists)
    lost = (wa == NOWHERE) | (wb == NOWHERE) | (wc == NOWHERE)
    reach = tl.where(lost, NOWHERE, 0) + tl.zeros((ROWS, BLOCK), tl.int32)
    count = tl.zeros((ROWS, 1), tl.int32)

    current = first
    while current < tl.minimum(first + ROWS, atoms):
        own_bin = tl.load(bin_of_atom_ptr + current)
        here = exists & (bin_of_i == own_bin)
        system = tl.load(batch_ptr + current)
        cell = cell_ptr + 9 * system
        ax, ay, az = tl.load(cell), tl.load(cell + 1), tl.load(cell + 2)
        bx, by, bz = tl.load(cell + 3), tl.load(cell + 4), tl.load(cell + 5)
        cx, cy, cz = tl.load(cell + 6), tl.load(cell + 7), tl.load(cell + 8)
        bins, spans, pbc = bins_ptr + 3 * system, spans_ptr + 3 * system, pbc_ptr + 3 * system
        na, nb, nc = tl.load(bins), tl.load(bins + 1), tl.load(bins + 2)
        ma, mb, mc = tl.load(spans), tl.load(spans + 1), tl.load(spans + 2)
        pa, pb, pc = tl.load(pbc), tl.load(pbc + 1), tl.load(pbc + 2)
        first_bin = _first_bin(tl.load(first_atoms_ptr + system), system)
        # Sums are kept positive, by m images, because integer division rounds towards zero.
        place = (own_bin - first_bin).to(tl.int32)
        lowest_a = place // (nb * nc) + ma * na - ma
        lowest_b = place // nc % nb + mb * nb - mb
        lowest_c = place % nc + mc * nc - mc
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
                        sa = image_a - tl.load(images_ptr + j, inside)
                        sb = image_b - tl.load(images_ptr + atoms + j, inside)
                        sc = image_c - tl.load(images_ptr + 2 * atoms + j, inside)
                        fa, fb, fc = sa.to(tl.float64), sb.to(tl.float64), sc.to(tl.float64)
                        x = xi - tl.load(positions_ptr + j, inside)
                        y = yi - tl.load(positions_ptr + atoms + j, inside)
                        z = zi - tl.load(positions_ptr + 2 * atoms + j, inside)
                        x -= fa * ax + fb * bx + fc * cx
                        y -= fa * ay + fb * by + fc * cy
                        z -= fa * az + fb * bz + fc * cz
                        near = x * x + y * y + z * z - squared_radius < 0
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


@triton.jit
def _sort_kernel(
    found_ptr,
    rank_ptr,
    count_ptr,
    keys_ptr,
    senders_ptr,
    shifts_ptr,
    K: tl.constexpr,
    SLOTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Put each key of a row behind all smaller ones, and take it apart."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.arange(0, SLOTS)
    count = tl.load(count_ptr + row)
    used = slot < count
    key = tl.load(found_ptr + row * K + slot, used, other=0)
    place = tl.zeros((SLOTS,), tl.int32)
    for block in range(0, count, BLOCK):
        others = block + tl.arange(0, BLOCK)
        other = tl.load(found_ptr + row * K + others, others < count, other=NO_EDGE)
        place += tl.sum((other[:, None] < key[None, :]).to(tl.int32), 0)
    edge = row * K + tl.where(used, place, slot)
    sender = tl.load(rank_ptr + (key >> 24), used, other=0)
    # In keys the first direction weighs most, for their order; in shifts it is the lowest byte.
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
    n_atoms,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    SLOTS: tl.constexpr,
    STEPS: tl.constexpr,
):
    """Look for the opposite of each edge in its sender's row, by bisection."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    slot = tl.arange(0, SLOTS)[None, :]
    edge = row * K + slot
    exists = (row < n_atoms) & (slot < K)
    used = slot < tl.load(count_ptr + row, row < n_atoms, other=0)
    key = tl.load(keys_ptr + edge, used, other=0)
    opposite = tl.load(order_ptr + row, row < n_atoms, other=0).to(tl.int64) << 24
    opposite |= 2 * NO_SHIFT - (key & THREE_BYTES) & THREE_BYTES  # changes the sign of each byte
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


def _bin_atoms(
    positions: Tensor, boxes: tuple[Tensor, Tensor, Tensor], batch: Tensor, radius: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Bins and spans of every system; bins and images of every atom."""
    cell, pbc, first_atoms = boxes
    n_atoms, n_systems = len(positions), len(cell)
    planes = torch.empty_like(cell)
    bins, spans = (batch.new_empty((n_systems, 3), dtype=torch.int32) for _ in range(2))
    _bins_kernel[(n_systems,)](cell, pbc, first_atoms, planes, bins, spans, radius, num_warps=1)
    bin_of_atom = batch.new_empty(n_atoms, dtype=torch.int32)
    images = batch.new_empty((n_atoms, 3), dtype=torch.int32)
    _assign_kernel[(triton.cdiv(n_atoms, 256),)](
        positions,
        pbc,
        batch,
        first_atoms,
        planes,
        bins,
        bin_of_atom,
        images,
        n_atoms,
        BLOCK=256,
    )
    return bins, spans, bin_of_atom, images


def _arrange(
    positions: Tensor, images: Tensor, by_bin: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Order and rank of the atoms; positions and images in this order, component first."""
    n_atoms = len(by_bin)
    order, rank = (by_bin.new_empty(n_atoms, dtype=torch.int32) for _ in range(2))
    sorted_positions, sorted_images = (x.new_empty((3, n_atoms)) for x in (positions, images))
    _arrange_kernel[(triton.cdiv(n_atoms, 256),)](
        positions,
        images,
        by_bin,
        order,
        rank,
        sorted_positions,
        sorted_images,
        n_atoms,
        BLOCK=256,
    )
    return order, rank, sorted_positions, sorted_images


def _complete(
    found: Tensor, order: Tensor, rank: Tensor, count: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Senders, shifts and reverse edges from the keys found."""
    n_atoms, capacity = found.shape
    slots = max(triton.next_power_of_2(capacity), 32)
    keys = torch.empty_like(found)
    senders, shifts = (torch.empty_like(found, dtype=torch.int32) for _ in range(2))
    _sort_kernel[(n_atoms,)](
        found,
        rank,
        count,
        keys,
        senders,
        shifts,
        K=capacity,
        SLOTS=slots,
        BLOCK=16,
        num_warps=max(slots // 128, 1),
    )
    reverse = senders.new_empty(senders.numel())
    rows = max(1024 // slots, 1)
    _reverse_kernel[(triton.cdiv(n_atoms, rows),)](
        keys,
        order,
        count,
        senders,
        reverse,
        n_atoms,
        K=capacity,
        ROWS=rows,
        SLOTS=slots,
        STEPS=capacity.bit_length(),
    )
    return senders, shifts, reverse


def _check(
    positions: Tensor, cell: Tensor, pbc: Tensor, batch: Tensor, radius: float, capacity: int
) -> None:
    check_device(positions, cell, pbc, batch)
    check_shape("positions", positions, ["N", 3])
    check_shape("cell", cell, ["B", 3, 3])
    check_shape("pbc", pbc, [len(cell), 3])
    check_shape("batch", batch, [len(positions)])
    for name, tensor, dtype in (
        ("positions", positions, torch.float64),
        ("cell", cell, torch.float64),
        ("pbc", pbc, torch.bool),
        ("batch", batch, torch.int64),
    ):
        if tensor.dtype is not dtype:
            raise InputError(f"{name} is {tensor.dtype}: give {dtype}")
    if len(positions) == 0:
        raise InputError("there are no atoms: give at least one")
    if not 0 < radius < float("inf"):
        raise InputError(f"the radius must be positive and finite, not {radius}")
    if not 0 < capacity <= MAX_CAPACITY:
        raise InputError(f"the capacity must lie in 1..{MAX_CAPACITY}, not {capacity}")
    if len(positions) * capacity >= 2**31:
        raise InputError(
            f"{len(positions)} rows of {capacity} slots are too many for 32-bit indices: "
            "split the batch, or lower the capacity"
        )


def build_rows(
    positions: Tensor, cell: Tensor, pbc: Tensor, batch: Tensor, radius: float, capacity: int
) -> NeighborMatrix:
    """Find every pair of atoms (and images) closer than a radius.

    Nothing here waits for the GPU. Whether the list is whole can be read from the result, and must
    be: see `NeighborMatrix`. Positions and cells are not checked; the time grows with the images of
    a cell within the radius, so refuse absurdly small cells before.

    Parameters
    ----------
    positions : float64 [N, 3]
        Å; they need not lie inside the cell, but a shift must reach over `MAX_REACH` cells at most.
    cell : float64 [B, 3, 3]
        Lattice vectors (rows) of each system in Å, open directions completed to a basis.
    pbc : bool [B, 3]
        Periodic directions.
    batch : int64 [N]
        System of each atom, ascending, each below B.
    radius : float
        Å; a model's cutoff and a skin.
    capacity : int
        Slots ``K`` of an atom.

    Returns
    -------
    NeighborMatrix
        Bitwise the same for the same input. Atoms are sorted by their system, then by their place
        in space.

    Raises
    ------
    InputError
        If a shape, a dtype, the radius or the capacity is wrong, or the tensors lie on several
        devices.
    BackendError
        If their device is no GPU.

    Examples
    --------
    >>> if torch.cuda.is_available():
    ...     positions = torch.rand(100, 3, dtype=torch.float64, device="cuda") * 9
    ...     cell = 9 * torch.eye(3, dtype=torch.float64, device="cuda")[None]
    ...     pbc = torch.ones(1, 3, dtype=torch.bool, device="cuda")
    ...     batch = torch.zeros(100, dtype=torch.int64, device="cuda")
    ...     rows = build_rows(positions, cell, pbc, batch, radius=3.0, capacity=64)
    ...     assert rows.needed <= 64
    """
    _check(positions, cell, pbc, batch, radius, capacity)
    n_atoms, n_systems, device = len(positions), len(cell), positions.device
    positions, batch = positions.contiguous(), batch.contiguous()
    first_atoms = torch.searchsorted(batch, torch.arange(n_systems + 1, device=device))
    boxes = cell.contiguous(), pbc.contiguous().view(torch.uint8), first_atoms
    bins, spans, bin_of_atom, images = _bin_atoms(positions, boxes, batch, radius)

    bin_of_atom, by_bin = torch.sort(bin_of_atom, stable=True)
    n_bins = n_atoms // ATOMS_PER_BIN.value + n_systems
    borders = torch.arange(n_bins + 1, dtype=torch.int32, device=device)
    starts = torch.searchsorted(bin_of_atom, borders, out_int32=True)
    order, rank, sorted_positions, sorted_images = _arrange(positions, images, by_bin)

    count = torch.empty_like(order)
    tallies = order.new_empty((2, n_atoms))
    found = batch.new_empty((n_atoms, capacity))
    _find_kernel[(triton.cdiv(n_atoms, FIND_ROWS),)](
        sorted_positions,
        sorted_images,
        order,
        batch,
        bin_of_atom,
        starts,
        *boxes,
        bins,
        spans,
        count,
        tallies,
        found,
        n_atoms,
        radius**2,
        K=capacity,
        ROWS=FIND_ROWS,
        BLOCK=32,
        num_warps=1,
    )
    needed, reach = tallies.amax(1)
    senders, shifts, reverse = _complete(found, order, rank, count)
    return NeighborMatrix(order, rank, count, senders, shifts, reverse, needed, reach)
