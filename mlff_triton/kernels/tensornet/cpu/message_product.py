"""Message passing with factors from a radial table, and tensor products.

Arguments and results are those of `mlff_triton.kernels.tensornet.reference.message_product`. Loops
over edges take one vector of channels after another, for all receivers, with the tensors of senders
packed accordingly. So the part of tensors and table that they read stays in the cache of a core.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.kernels.common.cpu.algebra import algebra
from mlff_triton.kernels.common.cpu.compilation import loop, run
from mlff_triton.kernels.common.cpu.packed import packed_table
from mlff_triton.kernels.common.cpu.radial_table import (
    look_up,
    look_up_both,
    slope_weights,
    weights,
)
from mlff_triton.kernels.common.cpu.tensors import (
    add,
    compose,
    decompose,
    dot_parts,
    load_wide,
    matmul,
    norm,
    scale,
    scale_parts,
    store_wide,
)
from mlff_triton.kernels.common.cpu.vectors import (
    lanes_of,
    load_nine,
    load_three,
    spread,
    store_all,
    total,
)
from mlff_triton.kernels.types.edges import Edges

GROUPS = {"none": 0, "SO(3)": 1, "O(3)": 2}


def message_product(
    y: Tensor, table: Tensor, own: Tensor, edges: Edges, charge_factor: Tensor, group: str
) -> tuple[Tensor, Tensor]:
    """Compute messages [9, M, F], and their normalized product with the receiver's tensors."""
    n_receivers, lanes = len(edges.slot_begin), lanes_of(y.shape[2], y.element_size())
    message = y.new_empty(9, n_receivers, y.shape[2])
    product = message if group == "none" else torch.empty_like(message)
    slots = edges.slot_begin, edges.slot_end, edges.senders
    geometry = edges.interval, edges.fraction, edges.width
    arrays = _packed(y), packed_table(table), own, *slots, *geometry, charge_factor
    run(_message_product, n_receivers, *arrays, GROUPS[group], lanes, message, product)
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
    """Compute the gradients [9, N, F] of the tensors sent; ``slope`` gets those of distances."""
    n_receivers, lanes = len(edges.slot_begin), lanes_of(y.shape[2], y.element_size())
    out = grad.new_empty(9, n_receivers, grad.shape[2])
    slots = edges.slot_begin, edges.slot_end, edges.senders, edges.origin
    geometry = edges.interval, edges.fraction, edges.width
    arrays = _packed(grad), y, direct, packed_table(table), own, *slots, *geometry
    run(_message_bwd, n_receivers, *arrays, accumulate, lanes, slope, out)
    return out


def _packed(x: Tensor) -> Tensor:
    """Return tensors [9, N, F] packed by vectors of channels, [blocks, N, 9, lanes]."""
    lanes = lanes_of(x.shape[2], x.element_size())
    out = x.new_empty(x.shape[2] // len(lanes), x.shape[1], 9, len(lanes))
    run(_pack, x.shape[1], x, lanes, out)
    return out


@loop
def _pack(x, lanes, out, first, last):
    for i in range(first, last):
        for block in range(out.shape[0]):
            store_all(out, (block, i, None, 0), load_wide(x, i, block * len(lanes), lanes))


@algebra
def _load_packed(x, block, atom, lanes):
    """Return the components of an atom of packed tensors."""
    return load_nine(x, (block, atom, None, 0), lanes)


@algebra
def _own_factors(own, f, lanes):
    """Return the factors of the edge of an atom to itself."""
    return load_three(own, (None, f), lanes)


@loop
def _message_product(
    y, table, own, slot_begin, slot_end, senders, interval, fraction, width, charge_factor,
    group, lanes, message, product, first, last,
):  # fmt: skip
    one, two, half = y.dtype.type(1), y.dtype.type(2), y.dtype.type(0.5)
    for block in range(y.shape[0]):
        f = block * len(lanes)
        for i in range(first, last):
            own_y = _load_packed(y, block, i, lanes)
            sums = scale_parts(_own_factors(own, f, lanes), own_y)
            for e in range(slot_begin[i], slot_end[i]):
                j = senders[e]
                if j < y.shape[1]:
                    w = weights(fraction[e], width[e])
                    factors = look_up(table, block, interval[e], w, lanes)
                    sums = add(sums, scale_parts(factors, _load_packed(y, block, j, lanes)))
            store_wide(message, i, f, sums)
            if group != 0:
                a, b = compose(own_y), compose(sums)
                full, factor = matmul(a, b), two
                if group == 2:
                    full, factor = add(full, matmul(b, a)), charge_factor[i]
                found = scale(factor, decompose(full, half))
                store_wide(product, i, f, scale(one / (norm(found) + one), found))


@loop
def _message_bwd(
    grad, y, direct, table, own, slot_begin, slot_end, senders, origin,
    interval, fraction, width, accumulate, lanes, slope, out, first, last,
):  # fmt: skip
    zero = spread(y.dtype.type(0), lanes)
    for block in range(grad.shape[0]):
        f = block * len(lanes)
        for i in range(first, last):
            own_y = load_wide(y, i, f, lanes)
            sums = zero, zero, zero, zero, zero, zero, zero, zero, zero
            if i < grad.shape[1]:
                sums = scale_parts(_own_factors(own, f, lanes), _load_packed(grad, block, i, lanes))
                sums = add(sums, load_wide(direct, i, f, lanes))
            for e in range(slot_begin[i], slot_end[i]):
                j = senders[e]
                if j < grad.shape[1]:
                    w, d = weights(fraction[e], width[e]), slope_weights(fraction[e])
                    factors, slopes = look_up_both(table, block, interval[e], w, d, lanes)
                    received = _load_packed(grad, block, j, lanes)
                    sums = add(sums, scale_parts(factors, received))
                    products = dot_parts(received, own_y)
                    found = total(
                        slopes[0] * products[0] + slopes[1] * products[1] + slopes[2] * products[2]
                    )
                    k = origin[e]
                    slope[k] = slope[k] + found if accumulate or block > 0 else found
            store_wide(out, i, f, sums)
