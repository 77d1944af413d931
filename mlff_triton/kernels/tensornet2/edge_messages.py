"""Messages with factors from a network of distances and charges.

    z1 = T(d_ij) + R q_i + S q_j      z2 = W2 act(z1) + b2      z3 = W3 act(z2) + b3
    M_i = sum_j act(z3)_k C(d_ij) Y_j                           a factor for each part k

over the neighbors j of atom i and the atom itself, with the cosine cutoff C: the interaction of
TensorNet2 in TorchMD-NET 3.1 (``torchmdnet/models/tensornet2.py``). T is tabulated.

Four kernels gather act(z1), multiply twice on tensor cores, and sum. If memory does not suffice for
all edges, a chunk of atoms is taken at a time, whose edges fill the GPU: see
`mlff_triton.kernels.tensornet2.edge_rows`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common.activations import activate_with_slope
from mlff_triton.kernels.common.checks import check_device
from mlff_triton.kernels.common.early_launch import early_launch, wait_for_previous
from mlff_triton.kernels.common.irreps import add, load_tensor, scale_parts, store_tensor, stride_of
from mlff_triton.kernels.common.radial import cosine_cutoff
from mlff_triton.kernels.tensornet.launch_sizes import other_rows
from mlff_triton.kernels.tensornet.message_product import sum_lanes
from mlff_triton.kernels.tensornet2.edge_rows import (
    Chunk,
    chunks,
    gather_hidden,
    load_rank,
    rows_before,
    whole,
)
from mlff_triton.kernels.tensornet2.launch_sizes import sum_blocks
from mlff_triton.kernels.tensornet2.row_products import row_products
from mlff_triton.kernels.types.edge_rows import EdgeRows, HiddenRows
from mlff_triton.kernels.types.edges import Edges
from mlff_triton.kernels.types.interaction_network import InteractionNetwork


@triton.jit
def _sum_messages_kernel(
    z3_ptr,
    y_ptr,
    cutoffs_ptr,
    slot_begin_ptr,
    slot_end_ptr,
    senders_ptr,
    origin_ptr,
    distance_ptr,
    ends_ptr,
    opposite_ptr,
    message_ptr,
    first,
    n_atoms,
    n_senders,
    n_rows,
    F: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK_F: tl.constexpr,
    ACTIVATION: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    """Sum messages. Grid: one program per atom of a chunk, and BLOCK_F channels.

    Reads ``z3[rows, 3 F]``, ``y[9, N, F]``, ``cutoffs[2]``, from `Edges` ``slot_begin[N]``,
    ``slot_end[N]`` and ``senders``, ``origin`` and ``distance`` [slots], and ``ends[N]``. Writes
    ``message[9, N, F]``. Unless ``opposite[slots]`` is None, rows are those of the edges that atoms
    send, below ``n_rows``. Unless ``n_senders`` is None, ``y`` has that many rows instead.
    """
    wait_for_previous(EARLY_LAUNCH)
    atom = first + tl.program_id(0)
    begin, end = tl.load(slot_begin_ptr + atom), tl.load(slot_end_ptr + atom)
    place = rows_before(ends_ptr, atom) - rows_before(ends_ptr, first)
    channel = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)[None, :]
    y_stride = stride_of(n_senders, n_atoms, F)
    zero = tl.zeros([LANES, BLOCK_F], y_ptr.dtype.element_ty)
    acc = (zero, zero, zero, zero, zero, zero, zero, zero, zero)
    lane = tl.arange(0, LANES)[:, None]
    given = senders_ptr, origin_ptr, opposite_ptr
    following = _load_neighbor(given, begin, end, atom, place, lane, n_rows)
    for k in range(0, end - begin + 1, LANES):
        neighbor, row, slot, real, live = following
        following = _load_neighbor(given, begin, end, atom, place, k + LANES + lane, n_rows)
        distance = tl.load(distance_ptr + slot, real, other=0.0)
        cutoff = cosine_cutoff(distance, cutoffs_ptr)[0]
        z3_row_ptr = z3_ptr + row * (3 * F) + channel
        i = tl.load(z3_row_ptr, live, other=0.0)
        a = tl.load(z3_row_ptr + F, live, other=0.0)
        s = tl.load(z3_row_ptr + 2 * F, live, other=0.0)
        factors = (
            activate_with_slope(i, ACTIVATION)[0] * cutoff,
            activate_with_slope(a, ACTIVATION)[0] * cutoff,
            activate_with_slope(s, ACTIVATION)[0] * cutoff,
        )
        y = load_tensor(y_ptr + neighbor * F + channel, y_stride, live)
        acc = add(acc, scale_parts(factors, y))
    message = sum_lanes(acc, 1, LANES, BLOCK_F)
    stride = stride_of(None, n_atoms, F)
    store_tensor(message_ptr + tl.cast(atom, tl.int64) * F + channel, stride, message, True)


@triton.jit
def _load_neighbor(pointers, begin, end, atom, place, rank, n_rows):
    """Return the neighbors and rows of edges, with the results of `load_rank`."""
    senders_ptr, origin_ptr, opposite_ptr = pointers
    neighbor, slot, real, live = load_rank(senders_ptr, begin, end, atom, rank)
    row = place + rank
    if opposite_ptr is not None:
        origin = tl.load(origin_ptr + slot, real, other=0)
        opposite = tl.load(opposite_ptr + origin, real, other=0)
        # If the matrix has too few slots, opposite edges may be missing, and their rows any number.
        row = tl.where(real, tl.minimum(tl.maximum(opposite, 0), n_rows - 1), row)
    return neighbor, row, slot, real, live


def third_hidden(
    chunk: Chunk,
    y: Tensor,
    terms: tuple[Tensor, Tensor],
    network: InteractionNetwork,
    edges: Edges,
    slopes: tuple[Tensor | None, Tensor | None] = (None, None),
    opposite: Tensor | None = None,
) -> Tensor:
    """Compute z3 [rows, 3 F] of a chunk's edges.

    ``slopes``, [rows, F] and [rows, 2 F], get those of act(z1) and act(z2). For ``opposite``, see
    `gather_hidden`.
    """
    channels = len(network.own)
    h1 = gather_hidden(chunk, y, terms, network, edges, slopes[0], opposite)
    h2 = chunk.empty_factors(y, 2 * channels, network)
    z3 = chunk.empty(y, 3 * channels)
    second = network.second_adjoint, network.second_bias
    row_products(chunk, h1, *second, h2, network, slopes[1], activate=True)
    row_products(chunk, h2, network.third_adjoint, network.third_bias, z3, network)
    return z3


def hidden_rows(
    chunk: Chunk,
    y: Tensor,
    terms: tuple[Tensor, Tensor],
    network: InteractionNetwork,
    edges: Edges,
    opposite: Tensor | None = None,
) -> HiddenRows:
    """Compute what the backward pass needs of a chunk's edges; for ``opposite``, see above."""
    channels = len(network.own)
    slopes = chunk.empty(y, channels), chunk.empty(y, 2 * channels)
    return HiddenRows(third_hidden(chunk, y, terms, network, edges, slopes, opposite), *slopes)


def edge_messages(
    y: Tensor, terms: Tensor, network: InteractionNetwork, edges: Edges, rows: EdgeRows
) -> tuple[Tensor, EdgeRows]:
    """Sum the messages to each atom.

    Parameters
    ----------
    y : [9, M, F]
        Tensors that the neighbors send. F is a power of two from 16 on.
    terms : [2, M, F]
        Parts of the first map that depend on the charges of receivers and senders: see
        `mlff_triton.kernels.tensornet2.charge_terms`.
    network : InteractionNetwork
        Network of the edges.
    edges : Edges
        Edges within the cutoff, in a neighbor matrix: all atoms have the same number of slots. Of
        the M atoms, the first N receive messages. Rows are only kept if all do.
    rows : EdgeRows
        From `mlff_triton.kernels.tensornet2.edge_rows.edge_rows`.

    Returns
    -------
    message : [9, N, F] Messages, including those of atoms to themselves. rows : EdgeRows
        Rows that the backward pass reads, if they fit into memory.
    """
    check_device(y)
    message = y.new_empty(9, len(edges.slot_begin), y.shape[2])
    every = whole(edges, rows.ends, y)
    with torch.cuda.device_of(y):
        if every is None:
            for chunk in chunks(edges, rows.ends):
                z3 = third_hidden(chunk, y, (terms[0], terms[1]), network, edges)
                _sum_messages(chunk, z3, y, network, edges, None, message)
            return message, rows
        opposite = torch.empty_like(edges.origin)
        hidden = hidden_rows(every, y, (terms[1], terms[0]), network, edges, opposite)
        _sum_messages(every, hidden.z3, y, network, edges, opposite, message)
    return message, rows._replace(hidden=hidden)


def _sum_messages(
    chunk: Chunk,
    z3: Tensor,
    y: Tensor,
    network: InteractionNetwork,
    edges: Edges,
    opposite: Tensor | None,
    message: Tensor,
) -> None:
    """Sum the messages to the atoms of a chunk.

    Rows ``z3`` are those of the edges that atoms receive, or ``opposite`` tells where these are.
    """
    _, n_atoms, channels = message.shape
    blocks = sum_blocks(message)
    _sum_messages_kernel[(chunk.n_atoms, channels // blocks.channels)](
        z3,
        y,
        network.cutoffs,
        edges.slot_begin,
        edges.slot_end,
        edges.senders,
        edges.origin,
        edges.distance,
        chunk.ends,
        opposite,
        message,
        chunk.first,
        n_atoms,
        other_rows(y.shape[1], n_atoms),
        chunk.n_rows,
        F=channels,
        LANES=blocks.lanes,
        BLOCK_F=blocks.channels,
        ACTIVATION=network.activation,
        num_warps=blocks.warps,
        **early_launch(y),
    )
