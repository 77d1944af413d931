"""Message passing with factors from a radial table, and the tensor product that follows it.

    M_i = f(0) Y_i + sum_j f_k(d_ij) Y_j                      a factor f_k for each part k
    P_i = (1 + 0.1 q) (Y_i M_i + M_i Y_i)  or  2 Y_i M_i      O(3) or SO(3)
    out = P / (|P|^2 + 1)

The interaction of TensorNet, https://arxiv.org/abs/2306.06482, eqs. 10-12, with the total charge q.
The factors are not stored: each is interpolated from two rows of the table when it is needed. A
program owns a few atoms that share the gathered data, and sums over their neighbors in registers.
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
    compose,
    decompose,
    dot_parts,
    inverse_norm,
    load_parts,
    load_tensor,
    matmul,
    scale_parts,
    store_tensor,
    stride_of,
    times,
)
from mlff_triton.kernels.common.radial import look_up, look_up_with_slope
from mlff_triton.kernels.tensornet.launch_sizes import (
    message_backward_blocks,
    message_blocks,
    other_rows,
)
from mlff_triton.kernels.types.edges import Edges


@triton.jit
def _radial_message_fwd_kernel(
    y_ptr,
    table_ptr,
    own_ptr,
    charge_factor_ptr,
    slot_begin_ptr,
    slot_end_ptr,
    senders_ptr,
    interval_ptr,
    fraction_ptr,
    width_ptr,
    message_ptr,
    product_ptr,
    n_atoms,
    n_senders,
    F: tl.constexpr,
    ATOMS: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK_F: tl.constexpr,
    UNROLL: tl.constexpr,
    GROUP: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    """Sum messages and multiply. Grid: one program per ATOMS atoms and BLOCK_F channels.

    Reads ``y[9, N, F]``, ``table[K + 1, 3, 3, F]``, ``own[3, F]``, ``charge_factor[N]``, and from
    `Edges` ``slot_begin[N]``, ``slot_end[N]`` and ``senders``, ``interval``, ``fraction`` and
    ``width`` [slots]. Writes ``message[9, N, F]`` and, unless GROUP is "none",
    ``product[9, N, F]``. Unless ``n_senders`` is None, ``y`` has that many rows instead. Blocks
    have R = ATOMS * LANES rows: LANES lanes share the neighbors of an atom.
    """
    wait_for_previous(EARLY_LAUNCH)
    row = tl.arange(0, ATOMS * LANES)
    atom = tl.program_id(0) * ATOMS + row // LANES  # [R]
    channel = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)  # [BF]
    stride = tl.cast(n_atoms, tl.int64) * F
    y_stride = stride_of(n_senders, n_atoms, F)
    inside = atom < n_atoms
    begin = tl.load(slot_begin_ptr + atom, inside, other=0)
    end = tl.load(slot_end_ptr + atom, inside, other=0)

    zero = tl.zeros([ATOMS * LANES, BLOCK_F], y_ptr.dtype.element_ty)
    acc = (zero, zero, zero, zero, zero, zero, zero, zero, zero)
    for k in range(0, tl.max(end - begin), LANES * UNROLL):
        for u in tl.static_range(UNROLL):
            slot = begin + k + u * LANES + row % LANES
            live = slot < end
            sender = tl.load(senders_ptr + slot, live, other=0).to(tl.int64)
            interval = tl.load(interval_ptr + slot, live, other=0)
            fraction = tl.load(fraction_ptr + slot, live, other=0.0)
            width = tl.load(width_ptr + slot, live, other=1.0)
            factors = look_up(table_ptr, interval, fraction, width, channel, live, F)
            y = load_tensor(y_ptr + sender[:, None] * F + channel[None, :], y_stride, live[:, None])
            acc = add(acc, scale_parts(factors, y))

    atom = tl.program_id(0) * ATOMS + tl.arange(0, ATOMS)  # [A]
    inside = (atom < n_atoms)[:, None]
    offset = atom.to(tl.int64)[:, None] * F + channel[None, :]
    y = load_tensor(y_ptr + offset, y_stride, inside)
    own = load_parts(own_ptr + channel[None, :], F, mask=True)
    message = add(sum_lanes(acc, ATOMS, LANES, BLOCK_F), scale_parts(own, y))
    store_tensor(message_ptr + offset, stride, message, inside)
    if GROUP != "none":
        a, b = compose(y), compose(message)
        ab = matmul(a, b)
        if GROUP == "O(3)":
            charge_factor = tl.load(charge_factor_ptr + atom, atom < n_atoms, other=1.0)[:, None]
            product = times(charge_factor, decompose(add(ab, matmul(b, a))))
        else:
            product = times(2, decompose(ab))
        product = times(inverse_norm(product), product)
        store_tensor(product_ptr + offset, stride, product, inside)


@triton.jit
def _radial_message_bwd_kernel(
    grad_ptr,
    y_ptr,
    direct_ptr,
    table_ptr,
    own_ptr,
    slot_begin_ptr,
    slot_end_ptr,
    senders_ptr,
    origin_ptr,
    interval_ptr,
    fraction_ptr,
    width_ptr,
    grad_y_ptr,
    slope_ptr,
    n_atoms,
    n_senders,
    n_receivers,
    n_direct,
    F: tl.constexpr,
    ATOMS: tl.constexpr,
    LANES: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    """Sum the gradients of messages at their senders. Grid: one program per ATOMS atoms.

    Reads ``grad``, ``y`` and ``direct``, all [9, N, F], ``table[K + 1, 3, 3, F]``, ``own[3, F]``,
    and from `Edges` ``slot_begin[N]``, ``slot_end[N]`` and ``senders``, ``origin``, ``interval``,
    ``fraction`` and ``width`` [slots]. Writes ``grad_y[9, N, F]`` and ``slope[slots]``. Unless they
    are None, ``y`` has ``n_senders`` rows instead, ``grad`` has ``n_receivers`` and ``direct`` has
    ``n_direct``; gradients are zero for all other atoms. Blocks have R = ATOMS * LANES rows: LANES
    lanes share the neighbors of an atom.
    """
    wait_for_previous(EARLY_LAUNCH)
    row = tl.arange(0, ATOMS * LANES)
    atom = tl.program_id(0) * ATOMS + row // LANES  # [R]
    channel = tl.arange(0, F)
    stride = tl.cast(n_atoms, tl.int64) * F
    y_stride = stride_of(n_senders, n_atoms, F)
    grad_stride = stride_of(n_receivers, n_atoms, F)
    inside = atom < n_atoms
    begin = tl.load(slot_begin_ptr + atom, inside, other=0)
    end = tl.load(slot_end_ptr + atom, inside, other=0)
    offset = atom.to(tl.int64)[:, None] * F + channel[None, :]
    y = load_tensor(y_ptr + offset, y_stride, inside[:, None])

    zero = tl.zeros([ATOMS * LANES, F], y_ptr.dtype.element_ty)
    acc = (zero, zero, zero, zero, zero, zero, zero, zero, zero)
    fields = senders_ptr, origin_ptr, interval_ptr, fraction_ptr, width_ptr
    slot = begin + row % LANES
    following = load_edges(fields, slot, slot < end)
    for _ in range(0, tl.max(end - begin), LANES):
        live = slot < end
        sender, origin, interval, fraction, width = following
        slot += LANES
        # Loaded before the store below, for which it would have to wait.
        following = load_edges(fields, slot, slot < end)
        factors, slopes = look_up_with_slope(table_ptr, interval, fraction, width, channel, live, F)
        given = live if n_receivers is None else live & (sender < n_receivers)
        sent = grad_ptr + sender[:, None] * F + channel[None, :]
        grad = load_tensor(sent, grad_stride, given[:, None])
        acc = add(acc, scale_parts(factors, grad))
        i, a, s = dot_parts(grad, y)
        slope = tl.sum(slopes[0] * i + slopes[1] * a + slopes[2] * s, axis=1)
        if ACCUMULATE:
            slope += tl.load(slope_ptr + origin, live, other=0.0)
        tl.store(slope_ptr + origin, slope, live)

    atom = tl.program_id(0) * ATOMS + tl.arange(0, ATOMS)  # [A]
    inside = (atom < n_atoms)[:, None]
    offset = atom.to(tl.int64)[:, None] * F + channel[None, :]
    own = load_parts(own_ptr + channel[None, :], F, mask=True)
    given = inside if n_receivers is None else inside & (atom < n_receivers)[:, None]
    grad = load_tensor(grad_ptr + offset, grad_stride, given)
    given = inside if n_direct is None else inside & (atom < n_direct)[:, None]
    direct = load_tensor(direct_ptr + offset, stride_of(n_direct, n_atoms, F), given)
    gathered = sum_lanes(acc, ATOMS, LANES, F)
    grad_y = add(add(gathered, scale_parts(own, grad)), direct)
    store_tensor(grad_y_ptr + offset, stride, grad_y, inside)


@triton.jit
def load_edges(fields, slot, live):
    """Return sender, origin, interval, fraction and width of edges, each [R]."""
    senders_ptr, origin_ptr, interval_ptr, fraction_ptr, width_ptr = fields
    return (
        tl.load(senders_ptr + slot, live, other=0).to(tl.int64),
        tl.load(origin_ptr + slot, live, other=0),
        tl.load(interval_ptr + slot, live, other=0),
        tl.load(fraction_ptr + slot, live, other=0.0),
        tl.load(width_ptr + slot, live, other=1.0),
    )


@triton.jit
def sum_lanes(acc, ATOMS: tl.constexpr, LANES: tl.constexpr, BLOCK_F: tl.constexpr):
    """Sum a tensor over the lanes of each atom: nine blocks [A L, BF] -> [A, BF]."""
    return (
        _sum_lanes(acc[0], ATOMS, LANES, BLOCK_F),
        _sum_lanes(acc[1], ATOMS, LANES, BLOCK_F),
        _sum_lanes(acc[2], ATOMS, LANES, BLOCK_F),
        _sum_lanes(acc[3], ATOMS, LANES, BLOCK_F),
        _sum_lanes(acc[4], ATOMS, LANES, BLOCK_F),
        _sum_lanes(acc[5], ATOMS, LANES, BLOCK_F),
        _sum_lanes(acc[6], ATOMS, LANES, BLOCK_F),
        _sum_lanes(acc[7], ATOMS, LANES, BLOCK_F),
        _sum_lanes(acc[8], ATOMS, LANES, BLOCK_F),
    )


@triton.jit
def _sum_lanes(x, ATOMS: tl.constexpr, LANES: tl.constexpr, BLOCK_F: tl.constexpr):
    """Sum one block over the lanes of each atom: [A L, BF] -> [A, BF]."""
    return x if LANES == 1 else tl.sum(tl.reshape(x, (ATOMS, LANES, BLOCK_F)), axis=1)


def message_product(
    y: Tensor, table: Tensor, own: Tensor, edges: Edges, charge_factor: Tensor, group: str
) -> tuple[Tensor, Tensor]:
    """Compute messages, and their normalized tensor product with the receiver's tensors.

    Parameters
    ----------
    y : [9, M, F]
        Tensors that the neighbors send.
    table : [K + 1, 3, 3, F]
        Factors at the knots: see `mlff_triton.engine.radial_tables`.
    own : [3, F]
        Factors of an atom's own tensor: those at distance 0, or zeros without self-loops.
    edges : Edges
        Edges within the cutoff, of as many receivers N as messages are needed for.
    charge_factor : [M]
        ``1 + 0.1 q``, with the total charge q of the atom's system.
    group : {"O(3)", "SO(3)", "none"}
        Tensor product. If "none", only the messages are computed.

    Returns
    -------
    message, product : [9, N, F]
    """
    check_device(y)
    n_atoms, channels = len(edges.slot_begin), y.shape[2]
    message = y.new_empty(9, n_atoms, channels)
    product = message if group == "none" else torch.empty_like(message)
    blocks = message_blocks(message)
    grid = (triton.cdiv(n_atoms, blocks.atoms), channels // blocks.channels)
    with torch.cuda.device_of(y):
        _radial_message_fwd_kernel[grid](
            y,
            table,
            own,
            charge_factor,
            edges.slot_begin,
            edges.slot_end,
            edges.senders,
            edges.interval,
            edges.fraction,
            edges.width,
            message,
            product,
            n_atoms,
            other_rows(y.shape[1], n_atoms),
            F=channels,
            ATOMS=blocks.atoms,
            LANES=blocks.lanes,
            BLOCK_F=blocks.channels,
            UNROLL=blocks.unroll,
            GROUP=group,
            num_warps=blocks.warps,
            **early_launch(y),
        )
    return message, product


def message_backward(
    grad: Tensor,
    y: Tensor,
    direct: Tensor,
    table: Tensor,
    own: Tensor,
    edges: Edges,
    slope: Tensor,
    accumulate: bool,
) -> Tensor:
    """Compute the gradients of the tensors that the neighbors sent, and of the distances.

    Parameters
    ----------
    grad : [9, N, F]
        Gradients of the messages of the first N atoms; those of others are zero.
    y, table, own
        As for `message_product`, with M or more rows.
    direct : [9, D, F]
        Further gradients of the first D tensors of ``y``, to be added to those through messages.
    edges : Edges
        Edges within the cutoff, of M atoms that have sent messages. The others at their ends are
        rows of ``grad``, or have none.
    slope : [slots]
        Output, indexed by ``edges.origin``: derivative with respect to the distance, for the
        opposite edge.
    accumulate : bool
        If True, add to the contents of ``slope``; if False, overwrite them.

    Returns
    -------
    [9, M, F]
        Gradients of ``y``.
    """
    check_device(grad)
    n_atoms, channels = len(edges.slot_begin), y.shape[2]
    grad_y = y.new_empty(9, n_atoms, channels)
    blocks = message_backward_blocks(y)
    with torch.cuda.device_of(y):
        _radial_message_bwd_kernel[(triton.cdiv(n_atoms, blocks.atoms),)](
            grad,
            y,
            direct,
            table,
            own,
            edges.slot_begin,
            edges.slot_end,
            edges.senders,
            edges.origin,
            edges.interval,
            edges.fraction,
            edges.width,
            grad_y,
            slope,
            n_atoms,
            *(other_rows(rows.shape[1], n_atoms) for rows in (y, grad, direct)),
            F=channels,
            ATOMS=blocks.atoms,
            LANES=blocks.lanes,
            ACCUMULATE=accumulate,
            num_warps=blocks.warps,
            **early_launch(y),
        )
    return grad_y
