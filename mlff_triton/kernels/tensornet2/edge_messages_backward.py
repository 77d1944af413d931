"""Gradients of the messages of `mlff_triton.kernels.tensornet2.edge_messages`.

The adjoint takes the edges that atoms send. If the forward pass has not kept their rows, it
computes the network again, for a chunk of atoms at a time. A kernel then gathers the gradients of
messages, sums those of tensors and computes those of z3; products with the adjoint maps follow; and
the last kernel sums the gradients of S q_j.

Sums of the gradients of R q_i run over the edges of other atoms. The adjoint of R is applied to
them first, so only Q values per edge go through memory.

Gradients of z3 in halves are scaled by a power of two for each edge, to keep the low halves exact.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common.activations import activate_with_slope
from mlff_triton.kernels.common.checks import check_device
from mlff_triton.kernels.common.early_launch import early_launch, wait_for_previous
from mlff_triton.kernels.common.hardware import register_limit
from mlff_triton.kernels.common.irreps import (
    add,
    dot_parts,
    load_tensor,
    scale_parts,
    store_tensor,
    stride_of,
)
from mlff_triton.kernels.common.radial import cosine_cutoff, look_up_function_slopes
from mlff_triton.kernels.numerics.product import end_sum, load_weight, multiply
from mlff_triton.kernels.tensornet.launch_sizes import other_rows
from mlff_triton.kernels.tensornet.message_product import sum_lanes
from mlff_triton.kernels.tensornet2.edge_messages import hidden_rows
from mlff_triton.kernels.tensornet2.edge_rows import (
    Chunk,
    chunks,
    load_rank,
    precision,
    rows_before,
    store_factors,
    whole,
)
from mlff_triton.kernels.tensornet2.launch_sizes import gradient_blocks, term_blocks
from mlff_triton.kernels.tensornet2.row_products import row_products
from mlff_triton.kernels.types.edge_rows import EdgeRows
from mlff_triton.kernels.types.edges import Edges
from mlff_triton.kernels.types.interaction_network import InteractionNetwork

_GRADIENT_EXPONENT = tl.constexpr(3)  # of the largest gradient of each edge, in base 2


@triton.jit
def _row_scale(largest, PRECISION: tl.constexpr):
    """Return powers of two that bring gradients to 8 or more, below 16, and their inverses."""
    if PRECISION == "fixed_halves":
        exponent = tl.maximum(largest.to(tl.int32, bitcast=True) >> 23, 8)
        scale = 254 + _GRADIENT_EXPONENT - exponent
        inverse = exponent - _GRADIENT_EXPONENT
        scale = (scale << 23).to(tl.float32, bitcast=True)
        inverse = (inverse << 23).to(tl.float32, bitcast=True)
    else:
        scale = tl.full(largest.shape, 1.0, largest.dtype)
        inverse = scale
    return scale, inverse


@triton.jit
def _tensor_gradients_kernel(
    grad_ptr,
    y_ptr,
    direct_ptr,
    z3_ptr,
    cutoffs_ptr,
    slot_begin_ptr,
    slot_end_ptr,
    senders_ptr,
    distance_ptr,
    ends_ptr,
    grad_y_ptr,
    grad_z3_ptr,
    inverse_ptr,
    slope_ptr,
    first,
    n_atoms,
    n_others,
    n_rows,
    F: tl.constexpr,
    LANES: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    """Sum the gradients of tensors at their senders. Grid: one program per atom of a chunk.

    Reads ``grad``, ``y`` and ``direct``, all [9, N, F], ``z3[n_rows, 3 F]``, ``cutoffs[2]``, from
    `Edges` ``slot_begin[N]``, ``slot_end[N]`` and ``senders`` and ``distance`` [slots], and
    ``ends[N]``. Writes ``grad_y[9, N, F]``; ``grad_z3[2 or 1, n_rows, 3 F]``, scaled if in halves;
    the inverse scale, and the derivative through the cutoff, both [n_rows]. Unless ``n_others`` is
    None, ``grad`` and ``y`` have that many rows instead.
    """
    wait_for_previous(EARLY_LAUNCH)
    atom = first + tl.program_id(0)
    begin, end = tl.load(slot_begin_ptr + atom), tl.load(slot_end_ptr + atom)
    place = rows_before(ends_ptr, atom) - rows_before(ends_ptr, first)
    channel = tl.arange(0, F)[None, :]
    stride = stride_of(n_others, n_atoms, F)
    low = tl.cast(n_rows, tl.int64) * (3 * F)
    offset = tl.cast(atom, tl.int64) * F + channel
    y = load_tensor(y_ptr + offset, stride, True)
    zero = tl.zeros([LANES, F], y_ptr.dtype.element_ty)
    acc = (zero, zero, zero, zero, zero, zero, zero, zero, zero)
    lane = tl.arange(0, LANES)[:, None]
    following = load_rank(senders_ptr, begin, end, atom, lane)
    for k in range(0, end - begin + 1, LANES):
        rank = k + lane
        neighbor, slot, real, live = following
        # Loaded before the stores below, for which it would have to wait.
        following = load_rank(senders_ptr, begin, end, atom, rank + LANES)
        distance = tl.load(distance_ptr + slot, real, other=0.0)
        cutoff, cutoff_slope = cosine_cutoff(distance, cutoffs_ptr)
        row = place + rank
        z3_row_ptr = z3_ptr + row * (3 * F) + channel
        i, i_slope = activate_with_slope(tl.load(z3_row_ptr, live, other=0.0), ACTIVATION)
        a, a_slope = activate_with_slope(tl.load(z3_row_ptr + F, live, other=0.0), ACTIVATION)
        s, s_slope = activate_with_slope(tl.load(z3_row_ptr + 2 * F, live, other=0.0), ACTIVATION)
        grad = load_tensor(grad_ptr + neighbor * F + channel, stride, live)
        acc = add(acc, scale_parts((i * cutoff, a * cutoff, s * cutoff), grad))
        by_i, by_a, by_s = dot_parts(grad, y)
        slope = tl.sum(by_i * i + by_a * a + by_s * s, axis=1)[:, None] * cutoff_slope
        by_i, by_a, by_s = by_i * i_slope * cutoff, by_a * a_slope * cutoff, by_s * s_slope * cutoff
        largest = tl.maximum(tl.maximum(tl.abs(by_i), tl.abs(by_a)), tl.abs(by_s))
        scale, inverse = _row_scale(tl.max(largest, axis=1)[:, None], PRECISION)
        out = grad_z3_ptr + row * (3 * F) + channel
        store_factors(out, low, by_i * scale, live, PRECISION)
        store_factors(out + F, low, by_a * scale, live, PRECISION)
        store_factors(out + 2 * F, low, by_s * scale, live, PRECISION)
        tl.store(inverse_ptr + row, inverse, live)
        tl.store(slope_ptr + row, slope, live)
    stride = stride_of(None, n_atoms, F)
    direct = load_tensor(direct_ptr + offset, stride, True)
    store_tensor(grad_y_ptr + offset, stride, add(sum_lanes(acc, 1, LANES, F), direct), True)


@triton.jit
def _term_gradients_kernel(
    grad_z1_ptr,
    inverse_ptr,
    row_slope_ptr,
    table_ptr,
    receiver_ptr,
    slot_begin_ptr,
    slot_end_ptr,
    origin_ptr,
    interval_ptr,
    fraction_ptr,
    ends_ptr,
    grad_sent_ptr,
    by_edge_ptr,
    by_atom_ptr,
    slope_ptr,
    first,
    n_charges,
    F: tl.constexpr,
    Q: tl.constexpr,
    LANES: tl.constexpr,
    PRECISION: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    """Sum the gradients of z1 at senders. Grid: one program per atom of a chunk.

    Reads ``grad_z1[n_rows, F]``, the inverse scale and derivative [n_rows] of each row,
    ``table[K + 1, 3, F]``, the weight ``receiver``, from `Edges` ``slot_begin[N]``,
    ``slot_end[N]`` and ``origin``, ``interval`` and ``fraction`` [slots], and ``ends[N]``. Writes
    ``grad_sent[N, F]``, ``by_edge[slots, n_charges]``, ``by_atom[N, n_charges]`` and
    ``slope[slots]``.
    """
    wait_for_previous(EARLY_LAUNCH)
    atom = first + tl.program_id(0)
    begin, end = tl.load(slot_begin_ptr + atom), tl.load(slot_end_ptr + atom)
    place = rows_before(ends_ptr, atom) - rows_before(ends_ptr, first)
    channel, charge = tl.arange(0, F)[None, :], tl.arange(0, Q)[None, :]
    used = charge < n_charges
    weight = load_weight(receiver_ptr, F, Q, 0, 0, PRECISION, F, Q)
    acc = tl.zeros([LANES, F], grad_sent_ptr.dtype.element_ty)
    for k in range(0, end - begin + 1, LANES):
        rank = k + tl.arange(0, LANES)[:, None]
        slot = begin + rank - 1
        real = (rank > 0) & (slot < end)
        live, row = real | (rank == 0), place + rank
        # All loads come before the product, whose barriers they would wait for.
        interval = tl.load(interval_ptr + slot, real, other=0)
        fraction = tl.load(fraction_ptr + slot, real, other=0.0)
        origin = tl.load(origin_ptr + slot, real, other=0)
        inverse = tl.load(inverse_ptr + row, live, other=0.0)
        slope = tl.load(row_slope_ptr + row, live, other=0.0)
        grad_z1 = tl.load(grad_z1_ptr + row * F + channel, live, other=0.0)
        tabulated = look_up_function_slopes(table_ptr, interval, fraction, channel, real, F)
        if ACCUMULATE:
            slope += tl.load(slope_ptr + origin, real, other=0.0)

        scaled = grad_z1 * inverse
        acc += scaled
        slope += tl.sum(scaled * tabulated, axis=1)[:, None]
        by_charge = multiply(grad_z1, weight, tl.zeros([LANES, Q], grad_z1.dtype), PRECISION)
        by_charge = end_sum(by_charge, PRECISION) * inverse

        tl.store(slope_ptr + origin, slope, real)
        edge_rows = by_edge_ptr + origin.to(tl.int64) * n_charges + charge
        tl.store(edge_rows, by_charge, real & used)
        atom_row = by_atom_ptr + tl.cast(atom, tl.int64) * n_charges + charge
        tl.store(atom_row + tl.zeros_like(rank), by_charge, (rank == 0) & used)
    sent = grad_sent_ptr + tl.cast(atom, tl.int64) * F + channel
    tl.store(sent, tl.sum(acc, axis=0)[None, :])


def _tensor_gradients(
    chunk: Chunk,
    tensors: tuple[Tensor, Tensor, Tensor],
    z3: Tensor,
    network: InteractionNetwork,
    edges: Edges,
    grad_y: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute gradients of z3, with their inverse scale and the derivative through the cutoff.

    Parameters
    ----------
    chunk : Chunk
        Atoms.
    tensors : ([9, M, F], [9, M, F], [9, N, F])
        Gradients of messages, what the neighbors sent, and its further gradients.
    z3 : [rows, 3 F]
        Hidden values.
    network, edges
        As for `edge_messages_backward`.
    grad_y : [9, N, F]
        Output.
    """
    _, n_atoms, channels = grad_y.shape
    blocks = gradient_blocks(grad_y)
    grad_z3 = chunk.empty_factors(grad_y, 3 * channels, network)
    inverse, slope = chunk.empty(grad_y, 1), chunk.empty(grad_y, 1)
    _tensor_gradients_kernel[(chunk.n_atoms,)](
        *tensors,
        z3,
        network.cutoffs,
        edges.slot_begin,
        edges.slot_end,
        edges.senders,
        edges.distance,
        chunk.ends,
        grad_y,
        grad_z3,
        inverse,
        slope,
        chunk.first,
        n_atoms,
        other_rows(tensors[0].shape[1], n_atoms),
        chunk.n_rows,
        F=channels,
        LANES=blocks.lanes,
        ACTIVATION=network.activation,
        PRECISION=precision(network, grad_y),
        num_warps=blocks.warps,
        **register_limit(blocks.registers),
        **early_launch(grad_y),
    )
    return grad_z3, inverse, slope


def edge_messages_backward(
    grad: Tensor,
    y: Tensor,
    direct: Tensor,
    terms: Tensor,
    network: InteractionNetwork,
    edges: Edges,
    rows: EdgeRows,
    slope: Tensor,
    accumulate: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute the gradients of what the neighbors sent, of the distances, and of charges.

    Parameters
    ----------
    grad : [9, M, F]
        Gradients of the messages, also of those that the last M - N atoms receive elsewhere.
    y, terms, network, edges
        As for `mlff_triton.kernels.tensornet2.edge_messages.edge_messages`.
    direct : [9, N, F]
        Further gradients of ``y``, to be added to those through the messages.
    rows : EdgeRows
        From `mlff_triton.kernels.tensornet2.edge_messages.edge_messages`.
    slope : [slots]
        Output, indexed by ``edges.origin``: derivative with respect to the distance, for the
        opposite edge.
    accumulate : bool
        If True, add to the contents of ``slope``; if False, overwrite them.

    Returns
    -------
    grad_y : [9, N, F]
        Gradients of ``y``.
    grad_sent : [N, F]
        Gradients of the terms of senders.
    by_edge : [slots, Q]
        Gradients of the receivers' charges, indexed by ``edges.origin``, for the opposite edge.
        Zero for edges of other atoms.
    by_atom : [N, Q]
        The same for the edge of each atom to itself.
    """
    check_device(grad)
    n_atoms, channels = len(edges.slot_begin), y.shape[2]
    n_charges = len(network.charges)
    grad_y, grad_sent = y.new_empty(9, n_atoms, channels), y.new_empty(n_atoms, channels)
    is_whole = y.shape[1] == n_atoms
    by_edge = (y.new_empty if is_whole else y.new_zeros)(len(edges.senders), n_charges)
    by_atom = y.new_empty(n_atoms, n_charges)
    roles = terms[1], terms[0]  # the atoms are senders, and their neighbors receivers
    blocks = term_blocks(y)
    with torch.cuda.device_of(y):
        every = whole(edges, rows.ends, y)
        for chunk in chunks(edges, rows.ends) if every is None else [every]:
            hidden = rows.hidden or hidden_rows(chunk, y, roles, network, edges)
            tensors = grad, y, direct
            grad_z3, *of_rows = _tensor_gradients(chunk, tensors, hidden.z3, network, edges, grad_y)
            grad_z2 = chunk.empty_factors(y, 2 * channels, network)
            third, second = (network.third, None), (network.second, None)
            row_products(chunk, grad_z3, *third, grad_z2, network, hidden.second_slope)
            del grad_z3
            grad_z1 = chunk.empty(y, channels)
            row_products(chunk, grad_z2, *second, grad_z1, network, hidden.first_slope)
            del grad_z2, hidden
            _term_gradients_kernel[(chunk.n_atoms,)](
                grad_z1,
                *of_rows,
                network.table,
                network.receiver,
                edges.slot_begin,
                edges.slot_end,
                edges.origin,
                edges.interval,
                edges.fraction,
                chunk.ends,
                grad_sent,
                by_edge,
                by_atom,
                slope,
                chunk.first,
                n_charges,
                F=channels,
                Q=network.receiver.shape[-1],
                LANES=blocks.lanes,
                PRECISION=precision(network, y),
                ACCUMULATE=accumulate,
                num_warps=blocks.warps,
                num_stages=1,
                **register_limit(blocks.registers),
                **early_launch(y),
            )
    return grad_y, grad_sent, by_edge, by_atom
