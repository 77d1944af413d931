"""Rows of edges: what the kernels of messages keep for each edge of the atoms of a chunk.

The edges of an atom fill consecutive rows, in the order of their slots. The first is the edge of
the atom to itself. Atoms follow each other without gaps. Only the GPU knows the number of edges, so
arrays have a row for each slot, and their last rows are not used.

The forward pass needs the edges that each atom receives, and the backward pass those that it sends.
If the rows of all atoms fit into memory, they hold the edges that atoms send. The forward pass
finds the edges that an atom receives through their opposites. The backward pass then reads the same
rows.

Rows that matrix products read are kept as halves if weights are, [2, rows, C], and otherwise as
they are, [1, rows, C]: see `mlff_triton.kernels.numerics.split`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common import hardware
from mlff_triton.kernels.common.activations import activate_with_slope
from mlff_triton.kernels.common.checks import check_device
from mlff_triton.kernels.common.early_launch import early_launch, wait_for_previous
from mlff_triton.kernels.common.radial import look_up_functions
from mlff_triton.kernels.numerics.product import scheme_of, split
from mlff_triton.kernels.tensornet2.launch_sizes import gather_blocks
from mlff_triton.kernels.types.edge_rows import EdgeRows
from mlff_triton.kernels.types.edges import Edges
from mlff_triton.kernels.types.interaction_network import InteractionNetwork

ROWS = 2**18
"""Rows of a chunk, unless those of 16 atoms are more."""

ALIGNMENT = 128
"""Rows of a chunk are a multiple of this."""

KEPT_BYTES = 2**31
"""Largest size of the rows that a layer keeps for its backward pass."""

KEPT_FRACTION = 1 / 32
"""Largest part of the GPU's memory that these rows take."""

VALUE_SCALE = 16.0
"""Factor of activations in halves: values up to 4094 have errors of 2e-9."""

_VALUE_SCALE = tl.constexpr(VALUE_SCALE)


class Chunk(NamedTuple):
    """Atoms that are taken together.

    Attributes
    ----------
    ends : int64 [N]
        From `EdgeRows`.
    first, last : int
        First atom, and the first after the last.
    n_rows : int
        Capacity of rows.
    """

    ends: Tensor
    first: int
    last: int
    n_rows: int

    @property
    def n_atoms(self) -> int:
        """Number of atoms."""
        return self.last - self.first

    def empty(self, y: Tensor, channels: int) -> Tensor:
        """Return rows [rows, C] of the dtype of ``y``."""
        return y.new_empty(self.n_rows, channels)

    def empty_factors(self, y: Tensor, channels: int, network: InteractionNetwork) -> Tensor:
        """Return rows for matrix products with weights of a network: [2 or 1, rows, C]."""
        if precision(network, y) == "fixed_halves":
            return y.new_empty(2, self.n_rows, channels, dtype=torch.float16)
        return y.new_empty(1, self.n_rows, channels)


def edge_rows(edges: Edges) -> EdgeRows:
    """Count the edges of all atoms up to each one."""
    check_device(edges.distance)
    n_atoms = len(edges.slot_begin)
    ends = edges.slot_begin.new_empty(n_atoms, dtype=torch.int64)
    with torch.cuda.device_of(ends):
        _row_ends_kernel[(1,)](
            edges.slot_begin,
            edges.slot_end,
            ends,
            n_atoms,
            BLOCK=min(max(triton.next_power_of_2(n_atoms), 32), 2048),
            num_warps=4,
            **early_launch(ends),
        )
    return EdgeRows(ends)


def _room(n_atoms: int, edges: Edges) -> int:
    """Return the number of rows that a chunk of ``n_atoms`` atoms may need."""
    rows_per_atom = len(edges.senders) // len(edges.slot_begin) + 1
    return -(-n_atoms * rows_per_atom // ALIGNMENT) * ALIGNMENT


def chunks(edges: Edges, ends: Tensor) -> Iterator[Chunk]:
    """Yield chunks of the atoms of a neighbor matrix, where all have the same number of slots."""
    n_atoms = len(edges.slot_begin)
    rows_per_atom = len(edges.senders) // n_atoms + 1
    size = max(16, ROWS // rows_per_atom // 16 * 16)
    for first in range(0, n_atoms, size):
        last = min(first + size, n_atoms)
        yield Chunk(ends, first, last, _room(last - first, edges))


def whole(edges: Edges, ends: Tensor, y: Tensor) -> Chunk | None:
    """Return all atoms as one chunk, if the rows that it keeps for the backward pass fit.

    None if there are other senders: rows of the edges from these are not among those of atoms.
    """
    n_atoms = len(edges.slot_begin)
    if y.shape[1] != n_atoms:
        return None
    n_rows = _room(n_atoms, edges)
    kept = n_rows * 6 * y.shape[2] * y.element_size()
    memory = hardware.total_memory(y.device)
    most = KEPT_BYTES if memory is None else min(KEPT_BYTES, KEPT_FRACTION * memory)
    return Chunk(ends, 0, n_atoms, n_rows) if kept <= most else None


def precision(network: InteractionNetwork, y: Tensor) -> str:
    """Return the precision of the network's matrix products."""
    found = scheme_of(network.second, y)
    return "tf32" if network.tf32 and found == "tf32x3" else found


@triton.jit
def _row_ends_kernel(
    slot_begin_ptr,
    slot_end_ptr,
    ends_ptr,
    n_atoms,
    BLOCK: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    """Count rows. Grid: one program.

    Reads ``slot_begin[N]`` and ``slot_end[N]``. Writes ``ends[N]``.
    """
    wait_for_previous(EARLY_LAUNCH)
    before = tl.zeros([1], tl.int64)
    for start in range(0, n_atoms, BLOCK):
        atom = start + tl.arange(0, BLOCK)
        live = atom < n_atoms
        begin = tl.load(slot_begin_ptr + atom, live, other=0)
        end = tl.load(slot_end_ptr + atom, live, other=0)
        count = tl.where(live, end - begin + 1, 0).to(tl.int64)
        tl.store(ends_ptr + atom, before + tl.cumsum(count, 0), live)
        before += tl.sum(count, 0)


@triton.jit
def rows_before(ends_ptr, atom):
    """Return the number of rows of all atoms before one, int64."""
    return tl.load(ends_ptr + atom - 1, atom > 0, other=0)


@triton.jit
def load_rank(senders_ptr, begin, end, atom, rank):
    """Return the other atoms of edges, their slots, and masks of ranks: all blocks like ``rank``.

    The masks are True for edges to neighbors, and for edges to neighbors or to the atom itself.
    """
    slot = begin + rank - 1
    real = (rank > 0) & (slot < end)
    neighbor = tl.where(real, tl.load(senders_ptr + slot, real, other=0), atom)
    return neighbor.to(tl.int64), slot, real, real | (rank == 0)


@triton.jit
def load_position(position_ptrs, slot, real):
    """Return interval, fraction and width in the table, for edges to neighbors."""
    interval_ptr, fraction_ptr, width_ptr = position_ptrs
    interval = tl.load(interval_ptr + slot, real, other=0)
    fraction = tl.load(fraction_ptr + slot, real, other=0.0)
    return interval, fraction, tl.load(width_ptr + slot, real, other=1.0)


@triton.jit
def first_hidden(
    table_ptr, own_ptr, terms, position, atom, neighbor, real, live, channel, F: tl.constexpr
):
    """Return z1 [L, F] of edges [L, 1] of an atom, for channels [1, F].

    ``terms`` are pointers to the terms of the atom, and of its neighbors.
    """
    z = look_up_functions(table_ptr, *position, channel, real, F)
    z += tl.where(real, 0.0, tl.load(own_ptr + channel))
    # The same bits if atoms and neighbors change their roles
    of_atom = tl.load(terms[0] + atom.to(tl.int64) * F + channel)
    return z + (of_atom + tl.load(terms[1] + neighbor * F + channel, live, other=0.0))


@triton.jit
def store_factors(pointers, low, x, mask, PRECISION: tl.constexpr):
    """Store values for a matrix product; ``low`` is the offset of their low halves."""
    if PRECISION == "fixed_halves":
        # The compiler splits once, and stores the high parts first.
        tl.store(pointers, split(x, PRECISION)[0], mask)
        tl.store(pointers + low, split(x, PRECISION)[1], mask)
    else:
        tl.store(pointers, x, mask)


@triton.jit
def _first_hidden_kernel(
    atom_terms_ptr,
    neighbor_terms_ptr,
    table_ptr,
    own_ptr,
    slot_begin_ptr,
    slot_end_ptr,
    senders_ptr,
    origin_ptr,
    reverse_ptr,
    interval_ptr,
    fraction_ptr,
    width_ptr,
    ends_ptr,
    h1_ptr,
    slope_ptr,
    opposite_ptr,
    first,
    n_rows,
    F: tl.constexpr,
    LANES: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    """Compute act(z1). Grid: one program per atom of a chunk.

    Reads the terms [N, F] of the atoms and of their neighbors, ``table[K + 1, 3, F]``, ``own[F]``,
    from `Edges` ``slot_begin[N]``, ``slot_end[N]`` and ``senders``, ``origin``, ``reverse``,
    ``interval``, ``fraction`` and ``width`` [slots], and ``ends[N]``. Writes
    ``h1[2 or 1, n_rows, F]`` and, unless they are None, its slopes ``slope[n_rows, F]``, and
    ``opposite[slots]``: the row of the opposite edge, indexed by origin.
    """
    wait_for_previous(EARLY_LAUNCH)
    atom = first + tl.program_id(0)
    begin, end = tl.load(slot_begin_ptr + atom), tl.load(slot_end_ptr + atom)
    place = rows_before(ends_ptr, atom) - rows_before(ends_ptr, first)
    channel = tl.arange(0, F)[None, :]
    terms = atom_terms_ptr, neighbor_terms_ptr
    position_ptrs = interval_ptr, fraction_ptr, width_ptr
    for k in range(0, end - begin + 1, LANES):
        rank = k + tl.arange(0, LANES)[:, None]
        neighbor, slot, real, live = load_rank(senders_ptr, begin, end, atom, rank)
        position = load_position(position_ptrs, slot, real)
        z1 = first_hidden(
            table_ptr, own_ptr, terms, position, atom, neighbor, real, live, channel, F
        )
        h1, slope = activate_with_slope(z1, ACTIVATION)
        if slope_ptr is not None:
            tl.store(slope_ptr + (place + rank) * F + channel, slope, live)
        if PRECISION == "fixed_halves":
            h1 *= _VALUE_SCALE
        if opposite_ptr is not None:
            origin = tl.load(origin_ptr + slot, real, other=0)
            opposite = tl.load(reverse_ptr + origin, real, other=0)
            tl.store(opposite_ptr + opposite, (place + rank).to(tl.int32), real)
        out = h1_ptr + (place + rank) * F + channel
        store_factors(out, tl.cast(n_rows, tl.int64) * F, h1, live, PRECISION)


def gather_hidden(
    chunk: Chunk,
    y: Tensor,
    terms: tuple[Tensor, Tensor],
    network: InteractionNetwork,
    edges: Edges,
    slope: Tensor | None,
    opposite: Tensor | None,
) -> Tensor:
    """Compute the first activations of a chunk's edges.

    Parameters
    ----------
    chunk : Chunk
        Atoms.
    y : Tensor
        Tensor of the working dtype.
    terms : ([N, F], [N, F])
        Parts of the first map that depend on the charges of the atoms, and of their neighbors.
    network, edges
        As for `mlff_triton.kernels.tensornet2.edge_messages.edge_messages`.
    slope : [rows, F], optional
        Output: slopes of the activation.
    opposite : int32 [slots], optional
        Output, indexed by ``edges.origin``: row of the opposite edge.

    Returns
    -------
    [2 or 1, rows, F]
        Scaled activations for matrix products.
    """
    channels = len(network.own)
    blocks = gather_blocks(y)
    h1 = chunk.empty_factors(y, channels, network)
    _first_hidden_kernel[(chunk.n_atoms,)](
        *terms,
        network.table,
        network.own,
        edges.slot_begin,
        edges.slot_end,
        edges.senders,
        edges.origin,
        edges.reverse,
        edges.interval,
        edges.fraction,
        edges.width,
        chunk.ends,
        h1,
        slope,
        opposite,
        chunk.first,
        chunk.n_rows,
        F=channels,
        LANES=blocks.lanes,
        ACTIVATION=network.activation,
        PRECISION=precision(network, y),
        num_warps=blocks.warps,
        **early_launch(y),
    )
    return h1
