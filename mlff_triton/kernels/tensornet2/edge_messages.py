"""Messages with factors from a network of distances and charges.

    z1 = T(d_ij) + R q_i + S q_j      z2 = W2 act(z1) + b2      z3 = W3 act(z2) + b3
    M_i = sum_j act(z3)_k C(d_ij) Y_j                           a factor for each part k

over the neighbors j of atom i and the atom itself, with the cosine cutoff C: the interaction of
TensorNet2 in TorchMD-NET 3.1 (``torchmdnet/models/tensornet2.py``). T is tabulated. A program owns
a few atoms. It multiplies the hidden values of a block of their edges on tensor cores and sums over
the edges, so nothing that is as wide as F is stored per edge.

The adjoint computes the network again, for the edges that the atoms of a program send, and sums the
gradients of their tensors and of S q_j where it computes them. Sums of the gradients of R q_i run
over the edges of other programs. They take Q values per edge through memory, because the adjoint of
R is applied to them first.

Weights of float32 networks are halves, see `mlff_triton.kernels.types.halves`. Activations are
scaled by a constant, and gradients by a power of two for each edge, to keep their low halves exact.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common.activations import activate_with_slope
from mlff_triton.kernels.common.checks import check_device
from mlff_triton.kernels.common.early_launch import early_launch, wait_for_previous
from mlff_triton.kernels.common.radial import (
    cosine_cutoff,
    look_up_function_slopes,
    look_up_functions,
)
from mlff_triton.kernels.common.split_products import end_sum, map_columns, precision_of
from mlff_triton.kernels.tensornet2.launch_sizes import edge_blocks
from mlff_triton.kernels.types.edges import Edges
from mlff_triton.kernels.types.interaction_network import InteractionNetwork

_VALUE_SCALE = tl.constexpr(16.0)  # of activations: up to 4094, with errors of 2e-9
_GRADIENT_EXPONENT = tl.constexpr(3)  # of the largest gradient of each edge, in base 2


@triton.jit
def _load_edges(fields, begin, end, rank, atom, inside):
    """Return the edges of these ranks in their rows, where rank 0 is the atom itself.

    All arguments and results are blocks [1, M]: neighbor, slot, interval, fraction, width and
    distance, and masks of edges to neighbors and of edges to the atom itself.
    """
    senders_ptr, interval_ptr, fraction_ptr, width_ptr, distance_ptr = fields
    slot = begin + rank - 1
    real = (rank > 0) & (slot < end)
    neighbor = tl.where(real, tl.load(senders_ptr + slot, real, other=0), atom).to(tl.int64)
    interval = tl.load(interval_ptr + slot, real, other=0)
    fraction = tl.load(fraction_ptr + slot, real, other=0.0)
    width = tl.load(width_ptr + slot, real, other=1.0)
    distance = tl.load(distance_ptr + slot, real, other=0.0)
    return neighbor, slot, interval, fraction, width, distance, real, (rank == 0) & inside


@triton.jit
def _first_hidden(
    table_ptr, own_ptr, terms_ptr, receiver, sender, edge, channel, n_atoms, F: tl.constexpr
):
    """Return z1 [F, M] for receivers and senders [1, M] of edges from `_load_edges`."""
    _, _, interval, fraction, width, _, real, own = edge
    z = look_up_functions(table_ptr, interval, fraction, width, channel, real, F)
    z += tl.where(own, tl.load(own_ptr + channel), 0.0)
    sent_ptr = terms_ptr + tl.cast(n_atoms, tl.int64) * F
    z += tl.load(terms_ptr + receiver * F + channel, real | own, other=0.0)
    return z + tl.load(sent_ptr + sender * F + channel, real | own, other=0.0)


@triton.jit
def _activated(z, ACTIVATION: tl.constexpr, PRECISION: tl.constexpr):
    """Apply the activation, and scale the result for products with halves."""
    h = activate_with_slope(z, ACTIVATION)[0]
    if PRECISION == "halves":
        h *= _VALUE_SCALE
    return h


@triton.jit
def _hidden(acc, bias_ptr, row, PRECISION: tl.constexpr):
    """Return hidden values [C, M] from a sum of products of scaled activations."""
    acc = end_sum(acc, PRECISION)
    if PRECISION == "halves":
        acc *= 1 / _VALUE_SCALE
    return acc + tl.load(bias_ptr + row + tl.arange(0, acc.shape[0]))[:, None]


@triton.jit
def _second_hidden(
    h1, second_ptr, bias_ptr, start, F: tl.constexpr, C: tl.constexpr, PRECISION: tl.constexpr
):
    """Return the channels ``start`` to ``start + C`` of z2 [C, M], for scaled act(z1) [F, M]."""
    acc = tl.zeros([C, h1.shape[1]], h1.dtype)
    acc = map_columns(second_ptr, h1, acc, F, 2 * F, start, 0, PRECISION)
    return _hidden(acc, bias_ptr, start, PRECISION)


@triton.jit
def _third_hidden(
    z1,
    second_ptr,
    second_bias_ptr,
    third_ptr,
    third_bias_ptr,
    F: tl.constexpr,
    C: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Return scaled act(z1) [F, M], and z3, three blocks [F, M]."""
    h1 = _activated(z1, ACTIVATION, PRECISION)
    i = tl.zeros_like(z1)
    a, s = i, i
    for start in range(0, 2 * F, C):
        z2 = _second_hidden(h1, second_ptr, second_bias_ptr, start, F, C, PRECISION)
        h2 = _activated(z2, ACTIVATION, PRECISION)
        i = map_columns(third_ptr, h2, i, 2 * F, 3 * F, 0, start, PRECISION)
        a = map_columns(third_ptr, h2, a, 2 * F, 3 * F, F, start, PRECISION)
        s = map_columns(third_ptr, h2, s, 2 * F, 3 * F, 2 * F, start, PRECISION)
    i = _hidden(i, third_bias_ptr, 0, PRECISION)
    a = _hidden(a, third_bias_ptr, F, PRECISION)
    return h1, (i, a, _hidden(s, third_bias_ptr, 2 * F, PRECISION))


@triton.jit
def _add_to_sums(
    values, sums_ptr, first_ptr, offset, inside, k, ATOMS: tl.constexpr, LANES: tl.constexpr
):
    """Add values [F, A L] of edges to the sums of their atoms [F, A], which only this program uses.

    The sums lie in memory, as they would not fit into registers. In the first iteration, k = 0,
    they begin as zero, or with the values at ``first_ptr``.
    """
    total = tl.load(sums_ptr + offset, inside & (k > 0), other=0.0)
    if first_ptr is not None:
        total += tl.load(first_ptr + offset, inside & (k == 0), other=0.0)
    values = tl.sum(tl.reshape(values, (values.shape[0], ATOMS, LANES)), axis=2)
    tl.store(sums_ptr + offset, total + values, inside)


@triton.jit
def _send_part(
    z3,
    cutoff,
    y_ptr,
    message_ptr,
    stride,
    live,
    offset,
    inside,
    k,
    FIRST: tl.constexpr,
    COUNT: tl.constexpr,
    ATOMS: tl.constexpr,
    LANES: tl.constexpr,
    ACTIVATION: tl.constexpr,
):
    """Add one part of the messages, which has COUNT components from FIRST on, for its z3 [F, M]."""
    factor = activate_with_slope(z3, ACTIVATION)[0] * cutoff
    for c in tl.static_range(FIRST, FIRST + COUNT):
        y = tl.load(y_ptr + c * stride, live, other=0.0)
        sums_ptr = message_ptr + c * stride
        _add_to_sums(factor * y, sums_ptr, None, offset, inside, k, ATOMS, LANES)


@triton.jit
def _send_part_bwd(
    z3,
    cutoff,
    grad_ptr,
    own_ptr,
    grad_y_ptr,
    direct_ptr,
    stride,
    live,
    offset,
    inside,
    k,
    FIRST: tl.constexpr,
    COUNT: tl.constexpr,
    ATOMS: tl.constexpr,
    LANES: tl.constexpr,
    ACTIVATION: tl.constexpr,
):
    """Add one part of the gradients of tensors, and return the gradient of its z3 [F, M].

    Also returns the derivative [1, M] with respect to the cutoff.
    """
    value, slope = activate_with_slope(z3, ACTIVATION)
    grad_factor = tl.zeros_like(z3)
    for c in tl.static_range(FIRST, FIRST + COUNT):
        grad = tl.load(grad_ptr + c * stride, live, other=0.0)
        grad_factor += grad * tl.load(own_ptr + c * stride, live, other=0.0)
        sums_ptr, first_ptr = grad_y_ptr + c * stride, direct_ptr + c * stride
        values = value * cutoff * grad
        _add_to_sums(values, sums_ptr, first_ptr, offset, inside, k, ATOMS, LANES)
    by_cutoff = tl.sum(grad_factor * value, axis=0)[None, :]
    return grad_factor * (slope * cutoff), by_cutoff


@triton.jit
def _edge_messages_fwd_kernel(
    y_ptr,
    terms_ptr,
    table_ptr,
    own_ptr,
    second_ptr,
    second_bias_ptr,
    third_ptr,
    third_bias_ptr,
    cutoffs_ptr,
    slot_begin_ptr,
    slot_end_ptr,
    senders_ptr,
    interval_ptr,
    fraction_ptr,
    width_ptr,
    distance_ptr,
    message_ptr,
    n_atoms,
    F: tl.constexpr,
    ATOMS: tl.constexpr,
    LANES: tl.constexpr,
    C: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    """Sum messages. Grid: one program per ATOMS atoms.

    Reads ``y[9, N, F]``, ``terms[2, N, F]``, the fields of `InteractionNetwork`, and from `Edges`
    ``slot_begin[N]``, ``slot_end[N]`` and ``senders``, ``interval``, ``fraction``, ``width`` and
    ``distance`` [slots]. Writes ``message[9, N, F]``. Blocks have a row per channel and M = ATOMS *
    LANES columns, one per edge.
    """
    wait_for_previous(EARLY_LAUNCH)
    column = tl.arange(0, ATOMS * LANES)[None, :]
    atom = tl.program_id(0) * ATOMS + column // LANES  # [1, M]
    channel = tl.arange(0, F)[:, None]
    stride = tl.cast(n_atoms, tl.int64) * F
    inside = atom < n_atoms
    begin = tl.load(slot_begin_ptr + atom, inside, other=0)
    end = tl.load(slot_end_ptr + atom, inside, other=0)
    receiver = atom.to(tl.int64)
    own_atom = tl.program_id(0) * ATOMS + tl.arange(0, ATOMS)[None, :]
    offset, known = own_atom.to(tl.int64) * F + channel, own_atom < n_atoms  # [F, A], [1, A]

    fields = senders_ptr, interval_ptr, fraction_ptr, width_ptr, distance_ptr
    for k in range(0, tl.max(end - begin) + 1, LANES):
        edge = _load_edges(fields, begin, end, k + column % LANES, atom, inside)
        sender, live = edge[0], edge[6] | edge[7]
        z1 = _first_hidden(
            table_ptr, own_ptr, terms_ptr, receiver, sender, edge, channel, n_atoms, F
        )
        maps = second_ptr, second_bias_ptr, third_ptr, third_bias_ptr
        _, z3 = _third_hidden(z1, *maps, F, C, ACTIVATION, PRECISION)
        cutoff = tl.where(live, cosine_cutoff(edge[5], cutoffs_ptr)[0], 0.0)
        where = y_ptr + sender * F + channel, message_ptr, stride, live, offset, known, k
        _send_part(z3[0], cutoff, *where, 0, 1, ATOMS, LANES, ACTIVATION)
        _send_part(z3[1], cutoff, *where, 1, 3, ATOMS, LANES, ACTIVATION)
        _send_part(z3[2], cutoff, *where, 4, 5, ATOMS, LANES, ACTIVATION)
        tl.debug_barrier()


@triton.jit
def _column_scale(largest, PRECISION: tl.constexpr):
    """Return powers of two that bring values to 8 or more, below 16, and their inverses."""
    if PRECISION == "halves":
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
def _edge_messages_bwd_kernel(
    grad_ptr,
    y_ptr,
    direct_ptr,
    terms_ptr,
    table_ptr,
    own_ptr,
    second_ptr,
    second_bias_ptr,
    third_ptr,
    third_bias_ptr,
    second_adjoint_ptr,
    third_adjoint_ptr,
    receiver_adjoint_ptr,
    cutoffs_ptr,
    slot_begin_ptr,
    slot_end_ptr,
    senders_ptr,
    origin_ptr,
    interval_ptr,
    fraction_ptr,
    width_ptr,
    distance_ptr,
    grad_y_ptr,
    grad_sent_ptr,
    by_edge_ptr,
    by_atom_ptr,
    slope_ptr,
    n_atoms,
    n_charges,
    F: tl.constexpr,
    Q: tl.constexpr,
    ATOMS: tl.constexpr,
    LANES: tl.constexpr,
    C: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    """Sum the gradients of messages at their senders. Grid: one program per ATOMS atoms.

    Reads ``grad``, ``y`` and ``direct``, all [9, N, F], ``terms[2, N, F]``, the fields of
    `InteractionNetwork`, and from `Edges` ``slot_begin[N]``, ``slot_end[N]`` and ``senders``,
    ``origin``, ``interval``, ``fraction``, ``width`` and ``distance`` [slots]. Writes
    ``grad_y[9, N, F]``, ``grad_sent[N, F]``, ``by_edge[slots, n_charges]``,
    ``by_atom[N, n_charges]`` and ``slope[slots]``. Blocks have a row per channel and M = ATOMS *
    LANES columns, one per edge.
    """
    wait_for_previous(EARLY_LAUNCH)
    column = tl.arange(0, ATOMS * LANES)[None, :]
    atom = tl.program_id(0) * ATOMS + column // LANES  # [1, M]
    channel = tl.arange(0, F)[:, None]
    stride = tl.cast(n_atoms, tl.int64) * F
    inside = atom < n_atoms
    begin = tl.load(slot_begin_ptr + atom, inside, other=0)
    end = tl.load(slot_end_ptr + atom, inside, other=0)
    sender = atom.to(tl.int64)
    own_atom = tl.program_id(0) * ATOMS + tl.arange(0, ATOMS)[None, :]
    offset, known = own_atom.to(tl.int64) * F + channel, own_atom < n_atoms  # [F, A], [1, A]

    fields = senders_ptr, interval_ptr, fraction_ptr, width_ptr, distance_ptr
    for k in range(0, tl.max(end - begin) + 1, LANES):
        edge = _load_edges(fields, begin, end, k + column % LANES, atom, inside)
        receiver, real, own = edge[0], edge[6], edge[7]
        live = real | own
        z1 = _first_hidden(
            table_ptr, own_ptr, terms_ptr, receiver, sender, edge, channel, n_atoms, F
        )
        maps = second_ptr, second_bias_ptr, third_ptr, third_bias_ptr
        h1, z3 = _third_hidden(z1, *maps, F, C, ACTIVATION, PRECISION)
        cutoff, cutoff_slope = cosine_cutoff(edge[5], cutoffs_ptr)
        cutoff = tl.where(live, cutoff, 0.0)
        rows = grad_ptr + receiver * F + channel, y_ptr + sender * F + channel
        where = grad_y_ptr, direct_ptr, stride, live, offset, known, k
        grad_i, i = _send_part_bwd(z3[0], cutoff, *rows, *where, 0, 1, ATOMS, LANES, ACTIVATION)
        grad_a, a = _send_part_bwd(z3[1], cutoff, *rows, *where, 1, 3, ATOMS, LANES, ACTIVATION)
        grad_s, s = _send_part_bwd(z3[2], cutoff, *rows, *where, 4, 5, ATOMS, LANES, ACTIVATION)
        slope = (i + a + s) * cutoff_slope

        largest = tl.maximum(tl.maximum(tl.abs(grad_i), tl.abs(grad_a)), tl.abs(grad_s))
        scale, inverse = _column_scale(tl.max(largest, axis=0)[None, :], PRECISION)
        grad_i, grad_a, grad_s = grad_i * scale, grad_a * scale, grad_s * scale
        grad_h1 = tl.zeros_like(z1)
        for start in range(0, 2 * F, C):
            z2 = _second_hidden(h1, second_ptr, second_bias_ptr, start, F, C, PRECISION)
            grad = tl.zeros_like(z2)
            grad = map_columns(third_adjoint_ptr, grad_i, grad, 3 * F, 2 * F, start, 0, PRECISION)
            grad = map_columns(third_adjoint_ptr, grad_a, grad, 3 * F, 2 * F, start, F, PRECISION)
            grad = map_columns(
                third_adjoint_ptr, grad_s, grad, 3 * F, 2 * F, start, 2 * F, PRECISION
            )
            grad = end_sum(grad, PRECISION) * activate_with_slope(z2, ACTIVATION)[1]
            grad_h1 = map_columns(second_adjoint_ptr, grad, grad_h1, 2 * F, F, 0, start, PRECISION)

        z1 = _first_hidden(
            table_ptr, own_ptr, terms_ptr, receiver, sender, edge, channel, n_atoms, F
        )
        grad_z1 = end_sum(grad_h1, PRECISION) * activate_with_slope(z1, ACTIVATION)[1]
        by_charge = tl.zeros([Q, ATOMS * LANES], z1.dtype)
        by_charge = map_columns(receiver_adjoint_ptr, grad_z1, by_charge, F, Q, 0, 0, PRECISION)
        by_charge = end_sum(by_charge, PRECISION) * inverse
        grad_z1 *= inverse
        _add_to_sums(grad_z1, grad_sent_ptr, None, offset, known, k, ATOMS, LANES)
        tabulated = look_up_function_slopes(table_ptr, edge[2], edge[3], channel, real, F)
        slope += tl.sum(grad_z1 * tabulated, axis=0)[None, :]

        origin = tl.load(origin_ptr + edge[1], real, other=0)
        if ACCUMULATE:
            slope += tl.load(slope_ptr + origin, real, other=0.0)
        tl.store(slope_ptr + origin, slope, real)
        charge = tl.arange(0, Q)[:, None]
        used = charge < n_charges
        edge_rows = by_edge_ptr + origin.to(tl.int64) * n_charges + charge
        tl.store(edge_rows, by_charge, real & used)
        tl.store(by_atom_ptr + sender * n_charges + charge, by_charge, own & used)
        tl.debug_barrier()


def _precision(network: InteractionNetwork, y: Tensor) -> str:
    """Return the precision of the network's matrix products."""
    precision = precision_of(network.second, y)
    return "tf32" if network.tf32 and precision == "tf32x3" else precision


def edge_messages(y: Tensor, terms: Tensor, network: InteractionNetwork, edges: Edges) -> Tensor:
    """Sum the messages to each atom.

    Parameters
    ----------
    y : [9, N, F]
        Tensors that the neighbors send. F is a power of two from 16 on.
    terms : [2, N, F]
        Parts of the first map that depend on the charges of receivers and senders: see
        `mlff_triton.kernels.tensornet2.charge_terms`.
    network : InteractionNetwork
        Network of the edges.
    edges : Edges
        Edges within the cutoff.

    Returns
    -------
    [9, N, F]
        Messages, with those of the atoms to themselves.
    """
    check_device(y)
    _, n_atoms, channels = y.shape
    message = torch.empty_like(y)
    blocks = edge_blocks(y)
    with torch.cuda.device_of(y):
        _edge_messages_fwd_kernel[(triton.cdiv(n_atoms, blocks.atoms),)](
            y,
            terms,
            network.table,
            network.own,
            network.second,
            network.second_bias,
            network.third,
            network.third_bias,
            network.cutoffs,
            edges.slot_begin,
            edges.slot_end,
            edges.senders,
            edges.interval,
            edges.fraction,
            edges.width,
            edges.distance,
            message,
            n_atoms,
            F=channels,
            ATOMS=blocks.atoms,
            LANES=blocks.lanes,
            C=min(blocks.inner, 2 * channels),
            ACTIVATION=network.activation,
            PRECISION=_precision(network, y),
            num_warps=blocks.warps,
            num_stages=blocks.stages,
            **early_launch(y),
        )
    return message


def edge_messages_backward(
    grad: Tensor,
    y: Tensor,
    direct: Tensor,
    terms: Tensor,
    network: InteractionNetwork,
    edges: Edges,
    slope: Tensor,
    accumulate: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute the gradients of what the neighbors sent, of the distances, and of charges.

    Parameters
    ----------
    grad : [9, N, F]
        Gradients of the messages.
    y, terms, network, edges
        As for `edge_messages`.
    direct : [9, N, F]
        Further gradients of ``y``, to be added to those through the messages.
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
    by_atom : [N, Q]
        The same for the edge of each atom to itself.
    """
    check_device(grad)
    _, n_atoms, channels = y.shape
    n_charges = len(network.charges)
    grad_y, grad_sent = torch.empty_like(y), torch.empty_like(terms[0])
    by_edge = y.new_empty(len(edges.senders), n_charges)
    by_atom = y.new_empty(n_atoms, n_charges)
    blocks = edge_blocks(y)
    with torch.cuda.device_of(y):
        _edge_messages_bwd_kernel[(triton.cdiv(n_atoms, blocks.atoms),)](
            grad,
            y,
            direct,
            terms,
            network.table,
            network.own,
            network.second,
            network.second_bias,
            network.third,
            network.third_bias,
            network.second_adjoint,
            network.third_adjoint,
            network.receiver_adjoint,
            network.cutoffs,
            edges.slot_begin,
            edges.slot_end,
            edges.senders,
            edges.origin,
            edges.interval,
            edges.fraction,
            edges.width,
            edges.distance,
            grad_y,
            grad_sent,
            by_edge,
            by_atom,
            slope,
            n_atoms,
            n_charges,
            F=channels,
            Q=network.receiver_adjoint.shape[-2],
            ATOMS=blocks.atoms,
            LANES=blocks.lanes,
            C=min(blocks.inner, 2 * channels),
            ACTIVATION=network.activation,
            PRECISION=_precision(network, y),
            ACCUMULATE=accumulate,
            num_warps=blocks.warps,
            num_stages=blocks.stages,
            **early_launch(y),
        )
    return grad_y, grad_sent, by_edge, by_atom
