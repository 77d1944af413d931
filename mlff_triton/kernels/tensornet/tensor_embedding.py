"""First tensor of each atom, from elements and geometry, and its gradient along the edges.

    v_k = (P_i + Q_j) T_k(d_ij)
    X_i = v_1(0) 1 + sum_j v_1 1 + v_2 A(u_ij) + v_3 (u_ij u_ij^T - 1/3)

The embedding of TensorNet, https://arxiv.org/abs/2306.06482, eqs. 5-8. The linear embedding of
pairs is split into two tables per element, P and Q, and T is interpolated from a radial table.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common.checks import check_device
from mlff_triton.kernels.common.early_launch import early_launch, wait_for_previous
from mlff_triton.kernels.common.irreps import (
    add,
    load_tensor,
    part_norms,
    scale_harmonics,
    store_tensor,
)
from mlff_triton.kernels.common.radial import look_up, look_up_with_slope
from mlff_triton.kernels.tensornet.launch_sizes import embedding_backward_blocks, embedding_blocks
from mlff_triton.kernels.tensornet.message_product import load_edges, sum_lanes
from mlff_triton.kernels.types.edges import Edges


@triton.jit
def _tensor_embedding_fwd_kernel(
    species_ptr,
    receiver_ptr,
    sender_ptr,
    table_ptr,
    own_ptr,
    slot_begin_ptr,
    slot_end_ptr,
    senders_ptr,
    interval_ptr,
    fraction_ptr,
    width_ptr,
    direction_ptr,
    x_ptr,
    norm_ptr,
    n_atoms,
    n_slots,
    F: tl.constexpr,
    ATOMS: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK_F: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    """Sum the first tensors. Grid: one program per ATOMS atoms and BLOCK_F channels.

    Reads ``species[N]``, the tables ``receiver[S, F]`` and ``sender[S, F]``,
    ``table[K + 1, 3, 3, F]``, ``own[F]``, and from `Edges` ``slot_begin[N]``, ``slot_end[N]``,
    ``senders``, ``interval``, ``fraction`` and ``width`` [slots] and ``direction[3, slots]``.
    Writes ``x[9, N, F]`` and ``norm[N, F]``. Blocks have R = ATOMS * LANES rows: LANES lanes share
    the neighbors of an atom.
    """
    wait_for_previous(EARLY_LAUNCH)
    row = tl.arange(0, ATOMS * LANES)
    atom = tl.program_id(0) * ATOMS + row // LANES  # [R]
    channel = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)  # [BF]
    inside = atom < n_atoms
    begin = tl.load(slot_begin_ptr + atom, inside, other=0)
    end = tl.load(slot_end_ptr + atom, inside, other=0)
    species = tl.load(species_ptr + atom, inside, other=0)
    p = tl.load(receiver_ptr + species[:, None] * F + channel[None, :])

    n_slots = tl.cast(n_slots, tl.int64)
    zero = tl.zeros([ATOMS * LANES, BLOCK_F], table_ptr.dtype.element_ty)
    acc = (zero, zero, zero, zero, zero, zero, zero, zero, zero)
    for k in range(0, tl.max(end - begin), LANES):
        slot = begin + k + row % LANES
        live = slot < end
        sender = tl.load(senders_ptr + slot, live, other=0)
        interval = tl.load(interval_ptr + slot, live, other=0)
        fraction = tl.load(fraction_ptr + slot, live, other=0.0)
        width = tl.load(width_ptr + slot, live, other=1.0)
        ux = tl.load(direction_ptr + slot, live, other=0.0)[:, None]
        uy = tl.load(direction_ptr + n_slots + slot, live, other=0.0)[:, None]
        uz = tl.load(direction_ptr + 2 * n_slots + slot, live, other=0.0)[:, None]
        factors = look_up(table_ptr, interval, fraction, width, channel, live, F)
        species = tl.load(species_ptr + sender, live, other=0)
        z = p + tl.load(sender_ptr + species[:, None] * F + channel[None, :])
        v = z * factors[0], z * factors[1], z * factors[2]
        acc = add(acc, scale_harmonics(v, ux, uy, uz))

    atom = tl.program_id(0) * ATOMS + tl.arange(0, ATOMS)  # [A]
    inside = atom < n_atoms
    species = tl.load(species_ptr + atom, inside, other=0)
    pair = species[:, None] * F + channel[None, :]
    z = tl.load(receiver_ptr + pair) + tl.load(sender_ptr + pair)
    own = z * tl.load(own_ptr + channel)[None, :]
    i, a0, a1, a2, s00, s01, s02, s11, s12 = sum_lanes(acc, ATOMS, LANES, BLOCK_F)
    x = (i + own, a0, a1, a2, s00, s01, s02, s11, s12)
    norm_i, norm_a, norm_s = part_norms(x)

    offset = atom.to(tl.int64)[:, None] * F + channel[None, :]
    store_tensor(x_ptr + offset, tl.cast(n_atoms, tl.int64) * F, x, inside[:, None])
    tl.store(norm_ptr + offset, norm_i + norm_a + norm_s, inside[:, None])


@triton.jit
def _tensor_embedding_bwd_kernel(
    grad_ptr,
    species_ptr,
    receiver_ptr,
    sender_ptr,
    table_ptr,
    slot_begin_ptr,
    slot_end_ptr,
    senders_ptr,
    origin_ptr,
    interval_ptr,
    fraction_ptr,
    width_ptr,
    direction_ptr,
    distance_ptr,
    slope_ptr,
    edge_grad_ptr,
    n_atoms,
    n_slots,
    F: tl.constexpr,
    ATOMS: tl.constexpr,
    LANES: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    """Compute the gradients of edge vectors. Grid: one program per ATOMS atoms.

    Reads ``grad[9, N, F]``, ``species[N]``, the tables ``receiver[S, F]`` and ``sender[S, F]``,
    ``table[K + 1, 3, 3, F]``, from `Edges` ``slot_begin[N]``, ``slot_end[N]``, ``senders``,
    ``origin``, ``interval``, ``fraction``, ``width`` and ``distance`` [slots] and
    ``direction[3, slots]``, and ``slope[slots]``, which may be None. Writes
    ``edge_grad[3, slots]``. Blocks have R = ATOMS * LANES rows: LANES lanes share the neighbors of
    an atom.
    """
    wait_for_previous(EARLY_LAUNCH)
    row = tl.arange(0, ATOMS * LANES)
    atom = tl.program_id(0) * ATOMS + row // LANES  # [R]
    channel = tl.arange(0, F)
    inside = atom < n_atoms
    begin = tl.load(slot_begin_ptr + atom, inside, other=0)
    end = tl.load(slot_end_ptr + atom, inside, other=0)
    species = tl.load(species_ptr + atom, inside, other=0)
    p = tl.load(receiver_ptr + species[:, None] * F + channel[None, :])
    offset = atom.to(tl.int64)[:, None] * F + channel[None, :]
    stride = tl.cast(n_atoms, tl.int64) * F
    i, a0, a1, a2, s00, s01, s02, s11, s12 = load_tensor(grad_ptr + offset, stride, inside[:, None])

    n_slots = tl.cast(n_slots, tl.int64)
    edge_fields = senders_ptr, origin_ptr, interval_ptr, fraction_ptr, width_ptr
    geometry = direction_ptr, direction_ptr + n_slots, direction_ptr + 2 * n_slots, distance_ptr
    slot = begin + row % LANES
    following = _load_edges(edge_fields, geometry, species_ptr, slot, slot < end)
    for k in range(0, tl.max(end - begin), LANES):
        slot = begin + k + row % LANES
        live = slot < end
        species, origin, interval, fraction, width, x, y, z, distance = following
        # Loaded before the stores below, for which it would have to wait.
        slot += LANES
        following = _load_edges(edge_fields, geometry, species_ptr, slot, slot < end)
        factors, slopes = look_up_with_slope(table_ptr, interval, fraction, width, channel, live, F)
        pair = p + tl.load(sender_ptr + species[:, None] * F + channel[None, :])

        ux, uy, uz = x[:, None], y[:, None], z[:, None]
        skew = a0 * ux + a1 * uy + a2 * uz  # [R, F]
        wx = 2 * s00 * ux + s01 * uy + s02 * uz  # derivative of u u^T by u
        wy = s01 * ux + 2 * s11 * uy + s12 * uz
        wz = s02 * ux + s12 * uy
        symmetric = 0.5 * (wx * ux + wy * uy + wz * uz) - (s00 + s11) / 3
        radial = tl.sum(pair * (slopes[0] * i + slopes[1] * skew + slopes[2] * symmetric), axis=1)
        gx = tl.sum(pair * (factors[1] * a0 + factors[2] * wx), axis=1)
        gy = tl.sum(pair * (factors[1] * a1 + factors[2] * wy), axis=1)
        gz = tl.sum(pair * (factors[1] * a2 + factors[2] * wz), axis=1)
        if slope_ptr is not None:
            radial += tl.load(slope_ptr + origin, live, other=0.0)
        radial -= (gx * x + gy * y + gz * z) / distance

        tl.store(edge_grad_ptr + origin, radial * x + gx / distance, live)
        tl.store(edge_grad_ptr + n_slots + origin, radial * y + gy / distance, live)
        tl.store(edge_grad_ptr + 2 * n_slots + origin, radial * z + gz / distance, live)


@triton.jit
def _load_edges(fields, geometry, species_ptr, slot, live):
    """Return the sender's species, origin, radial position, direction and distance of edges [R]."""
    x_ptr, y_ptr, z_ptr, distance_ptr = geometry
    sender, origin, interval, fraction, width = load_edges(fields, slot, live)
    return (
        tl.load(species_ptr + sender, live, other=0),
        origin,
        interval,
        fraction,
        width,
        tl.load(x_ptr + slot, live, other=0.0),
        tl.load(y_ptr + slot, live, other=0.0),
        tl.load(z_ptr + slot, live, other=0.0),
        tl.load(distance_ptr + slot, live, other=1.0),
    )


def tensor_embedding(
    species: Tensor,
    receiver: Tensor,
    sender: Tensor,
    table: Tensor,
    own: Tensor,
    edges: Edges,
) -> tuple[Tensor, Tensor]:
    """Compute the first tensors of atoms, and their squared norms.

    Parameters
    ----------
    species : int32 [M]
        Element of each atom.
    receiver, sender : [S, F]
        Tables P and Q.
    table : [K + 1, 3, 3, F]
        T at the knots: see `mlff_triton.engine.radial_tables`.
    own : [F]
        ``T_1(0)``, or zeros without self-loops.
    edges : Edges
        Edges within the cutoff, of as many receivers N as tensors are needed for.

    Returns
    -------
    x : [9, N, F]
    norm : [N, F]
    """
    check_device(table)
    n_atoms, channels = len(edges.slot_begin), receiver.shape[1]
    x = receiver.new_empty(9, n_atoms, channels)
    norm = receiver.new_empty(n_atoms, channels)
    blocks = embedding_blocks(x)
    with torch.cuda.device_of(x):
        _tensor_embedding_fwd_kernel[
            (triton.cdiv(n_atoms, blocks.atoms), channels // blocks.channels)
        ](
            species,
            receiver,
            sender,
            table,
            own,
            edges.slot_begin,
            edges.slot_end,
            edges.senders,
            edges.interval,
            edges.fraction,
            edges.width,
            edges.direction,
            x,
            norm,
            n_atoms,
            len(edges.senders),
            F=channels,
            ATOMS=blocks.atoms,
            LANES=blocks.lanes,
            BLOCK_F=blocks.channels,
            num_warps=blocks.warps,
            **early_launch(x),
        )
    return x, norm


def tensor_embedding_backward(
    grad: Tensor,
    species: Tensor,
    receiver: Tensor,
    sender: Tensor,
    table: Tensor,
    edges: Edges,
    slope: Tensor | None,
) -> Tensor:
    """Compute the gradient of the energy with respect to each edge vector.

    Parameters
    ----------
    grad : [9, N, F]
        Gradients of the first tensors.
    species, receiver, sender, table, edges
        As for `tensor_embedding`.
    slope : [slots], optional
        Derivatives of the energy by the distances in later layers, indexed by ``edges.origin``.

    Returns
    -------
    [3, slots]
        ``dE/dr_e``, indexed by ``edges.origin``. Opposite edges may have exchanged contributions.
        Zero for edges whose receivers are not among ``edges``.
    """
    check_device(table)
    n_atoms, channels = grad.shape[1:]
    is_whole = n_atoms == len(species)
    edge_grad = (torch.empty_like if is_whole else torch.zeros_like)(edges.direction)
    blocks = embedding_backward_blocks(grad)
    with torch.cuda.device_of(grad):
        _tensor_embedding_bwd_kernel[(triton.cdiv(n_atoms, blocks.atoms),)](
            grad,
            species,
            receiver,
            sender,
            table,
            edges.slot_begin,
            edges.slot_end,
            edges.senders,
            edges.origin,
            edges.interval,
            edges.fraction,
            edges.width,
            edges.direction,
            edges.distance,
            slope,
            edge_grad,
            n_atoms,
            len(edges.senders),
            F=channels,
            ATOMS=blocks.atoms,
            LANES=blocks.lanes,
            num_warps=blocks.warps,
            **early_launch(grad),
        )
    return edge_grad
