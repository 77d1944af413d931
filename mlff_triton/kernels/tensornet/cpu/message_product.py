"""Message passing with factors from a radial table, and tensor products.

Arguments and results are those of `mlff_triton.kernels.tensornet.reference.message_product`.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mlff_triton.kernels.common.cpu.compilation import inlined, loop, run
from mlff_triton.kernels.common.cpu.radial_table import look_up, look_up_slope
from mlff_triton.kernels.common.cpu.tensors import (
    add,
    compose,
    decompose,
    load,
    matmul,
    norm,
    scale,
    store,
)
from mlff_triton.kernels.types.edges import Edges

GROUPS = {"none": 0, "SO(3)": 1, "O(3)": 2}


def message_product(
    y: Tensor, table: Tensor, own: Tensor, edges: Edges, charge_factor: Tensor, group: str
) -> tuple[Tensor, Tensor]:
    """Compute messages [9, M, F], and their normalized product with the receiver's tensors."""
    n_receivers = len(edges.slot_begin)
    message = y.new_empty(9, n_receivers, y.shape[2])
    product = message if group == "none" else torch.empty_like(message)
    slots = edges.slot_begin, edges.slot_end, edges.senders
    geometry = edges.interval, edges.fraction, edges.width
    arrays = y, table, own, *slots, *geometry, charge_factor
    run(_message_product, n_receivers, *arrays, GROUPS[group], message, product)
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
    n_receivers = len(edges.slot_begin)
    out = grad.new_empty(9, n_receivers, grad.shape[2])
    slots = edges.slot_begin, edges.slot_end, edges.senders, edges.origin
    geometry = edges.interval, edges.fraction, edges.width
    arrays = grad, y, direct, table, own, *slots, *geometry
    run(_message_bwd, n_receivers, *arrays, accumulate, slope, out)
    return out


@inlined
def _add_message(factors, y, sender, sums):
    """Add the tensors of a sender, times the factors of their parts, to sums [9, F]."""
    for f in range(sums.shape[1]):
        sums[0, f] += factors[0, f] * y[0, sender, f]
    for c in range(1, 4):
        for f in range(sums.shape[1]):
            sums[c, f] += factors[1, f] * y[c, sender, f]
    for c in range(4, 9):
        for f in range(sums.shape[1]):
            sums[c, f] += factors[2, f] * y[c, sender, f]


@loop
def _message_product(
    y, table, own, slot_begin, slot_end, senders, interval, fraction, width, charge_factor,
    group, message, product, first, last,
):  # fmt: skip
    number, channels = y.dtype.type, y.shape[2]
    half = number(0.5)
    factors = np.empty((3, channels), y.dtype)
    sums = np.empty((9, channels), y.dtype)
    for i in range(first, last):
        sums[:] = 0
        _add_message(own, y, i, sums)
        for e in range(slot_begin[i], slot_end[i]):
            if senders[e] < y.shape[1]:
                look_up(table, interval[e], fraction[e], width[e], factors)
                _add_message(factors, y, senders[e], sums)
        message[:, i] = sums
        if group == 0:
            continue
        charge = charge_factor[i]
        for f in range(channels):
            a, b = compose(load(y, i, f)), compose(load(message, i, f))
            if group == 2:
                both = add(matmul(a, b), matmul(b, a))
                found = scale(charge, decompose(both, half))
            else:
                both = matmul(a, b)
                found = decompose(add(both, both), half)
            store(product, i, f, scale(number(1) / (norm(found) + number(1)), found))


@loop
def _message_bwd(
    grad, y, direct, table, own, slot_begin, slot_end, senders, origin,
    interval, fraction, width, accumulate, slope, out, first, last,
):  # fmt: skip
    number, channels = y.dtype.type, y.shape[2]
    factors = np.empty((3, channels), y.dtype)
    slopes = np.empty((3, channels), y.dtype)
    sums = np.empty((9, channels), y.dtype)
    for i in range(first, last):
        sums[:] = 0
        if i < grad.shape[1]:
            _add_message(own, grad, i, sums)
            sums += direct[:, i]
        for e in range(slot_begin[i], slot_end[i]):
            j = senders[e]
            if j >= grad.shape[1]:
                continue
            look_up(table, interval[e], fraction[e], width[e], factors)
            look_up_slope(table, interval[e], fraction[e], slopes)
            _add_message(factors, grad, j, sums)
            found = number(0)
            for f in range(channels):
                found += (
                    slopes[0, f] * grad[0, j, f] * y[0, i, f]
                    + slopes[1, f]
                    * (
                        grad[1, j, f] * y[1, i, f]
                        + grad[2, j, f] * y[2, i, f]
                        + grad[3, j, f] * y[3, i, f]
                    )
                    + slopes[2, f]
                    * (
                        grad[4, j, f] * y[4, i, f]
                        + grad[5, j, f] * y[5, i, f]
                        + grad[6, j, f] * y[6, i, f]
                        + grad[7, j, f] * y[7, i, f]
                        + grad[8, j, f] * y[8, i, f]
                    )
                )
            k = origin[e]
            slope[k] = slope[k] + found if accumulate else found
        out[:, i] = sums
