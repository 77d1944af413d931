"""Messages with factors from a network of distances and charges.

Products with the maps of the network take blocks of rows, which stay in a processor's cache until
their messages are summed. Arguments and results are those of
`mlff_triton.kernels.tensornet2.reference.edge_messages`, except that gradients of the charges of
receivers are summed for each atom, and none is returned for an edge.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from mlff_triton.kernels.common.cpu.activations import (
    activate,
    activate_backward,
    activate_with_slope,
)
from mlff_triton.kernels.common.cpu.compilation import inlined, loop, run
from mlff_triton.kernels.common.cpu.threads import in_parallel, own_threads
from mlff_triton.kernels.tensornet2.cpu.edge_rows import blocks
from mlff_triton.kernels.types.edge_rows import EdgeRows, HiddenRows
from mlff_triton.kernels.types.edges import Edges
from mlff_triton.kernels.types.interaction_network import InteractionNetwork


@own_threads()
def edge_messages(
    y: Tensor, terms: Tensor, network: InteractionNetwork, edges: Edges, rows: EdgeRows
) -> tuple[Tensor, EdgeRows]:
    """Sum the messages to each atom: [9, N, F]; keep rows of hidden values."""
    n, channels = network, y.shape[2]
    message = torch.empty_like(y)
    assert rows.opposites is not None
    n_rows = len(rows.opposites)
    kept = HiddenRows(*(y.new_empty(n_rows, k * channels) for k in (3, 1, 2)))
    slots = edges.slot_begin.numpy(), edges.slot_end.numpy(), edges.senders.numpy()
    place = edges.interval.numpy(), edges.fraction.numpy(), edges.width.numpy()
    tables = n.table.numpy(), n.own.numpy(), terms.numpy()
    distance, cutoffs = edges.distance.numpy(), n.cutoffs.numpy()
    tensors = y.numpy(), message.numpy()

    def work(first: int, last: int, begin: int, end: int) -> None:
        part = slice(begin, end)
        z1 = y.new_empty(end - begin, channels)
        _first_map(*tables, *slots, *place, z1.numpy(), first, last)
        h1 = activate_with_slope(z1, n.activation, kept.first_slope[part])
        z2 = torch.addmm(n.second_bias, h1, n.second.T)
        h2 = activate_with_slope(z2, n.activation, kept.second_slope[part])
        z3 = torch.addmm(n.third_bias, h2, n.third.T, out=kept.z3[part])
        values = activate(z3, n.activation).numpy()
        _sum_messages(values, *slots, distance, cutoffs, *tensors, first, last)

    in_parallel(work, blocks(rows))
    return message, rows._replace(hidden=kept)


@own_threads()
def edge_messages_backward(
    grad: Tensor,
    y: Tensor,
    direct: Tensor,
    terms: Tensor,  # noqa: ARG001 (hidden values are kept)
    network: InteractionNetwork,
    edges: Edges,
    rows: EdgeRows,
    slope: Tensor,
    accumulate: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute the gradients of tensors and terms of senders, and those of receivers' charges.

    The rows of hidden values are overwritten.
    """
    n, kept = network, rows.hidden
    assert kept is not None
    assert rows.opposites is not None
    slots = edges.slot_begin.numpy(), edges.slot_end.numpy(), edges.senders.numpy()
    sides = edges.origin.numpy(), edges.reverse.numpy()
    distance, cutoffs, table = edges.distance.numpy(), n.cutoffs.numpy(), n.table.numpy()
    place = edges.interval.numpy(), edges.fraction.numpy()
    tensors, slopes = (grad.numpy(), y.numpy()), slope.numpy()
    received = y.new_empty(y.shape[1:])

    def work(first: int, last: int, begin: int, end: int) -> None:
        part = slice(begin, end)
        z3, grad_z1 = kept.z3[part], kept.first_slope[part]
        values, grad_z3 = activate(z3, n.activation), torch.empty_like(z3)
        given = *tensors, *slots, *sides, distance, cutoffs, accumulate
        _factor_gradients(*given, values.numpy(), grad_z3.numpy(), slopes, first, last)
        grad_z3 = activate_backward(grad_z3, z3, n.activation)
        grad_z2 = torch.mm(grad_z3, n.third_adjoint.T).mul_(kept.second_slope[part])
        grad_z1.mul_(torch.mm(grad_z2, n.second_adjoint.T))
        z3.copy_(values)  # the factors
        given = grad_z1.numpy(), table, *slots[:2], *sides, *place
        _distance_gradients(*given, slopes, received.numpy(), first, last)

    in_parallel(work, blocks(rows))
    grad_y, grad_sent = torch.empty_like(y), torch.empty_like(received)
    arrays = kept.z3, kept.first_slope, rows.opposites, *slots, grad, direct, grad_y, grad_sent
    run(_sum_sent, y.shape[1], *arrays)
    n_charges = len(n.charges)
    by_atom = torch.mm(received, n.receiver)[:, :n_charges]
    return grad_y, grad_sent, y.new_empty(0, n_charges), by_atom


@inlined
def _cosine_cutoff(distance, lower, upper):
    """Return the cosine cutoff of a distance, and its derivative."""
    if distance >= upper or (lower > 0 and distance <= lower):
        return 0.0, 0.0
    if lower > 0:
        angle, sign, start = 2 * math.pi / (upper - lower), -0.5, lower
    else:
        angle, sign, start = math.pi / upper, 0.5, 0.0
    x = angle * (distance - start)
    return 0.5 + sign * math.cos(x), -sign * angle * math.sin(x)


@loop
def _first_map(
    table, own, terms, slot_begin, slot_end, senders, interval, fraction, width, z, first, last
):
    """Write the first hidden values of a block of rows."""
    number, channels = table.dtype.type, z.shape[1]
    row = 0
    for i in range(first, last):
        for f in range(channels):
            z[row, f] = own[f] + terms[0, i, f] + terms[1, i, f]
        row += 1
        for e in range(slot_begin[i], slot_end[i]):
            j, k, t, w = senders[e], interval[e], fraction[e], width[e]
            u = number(1) - t
            start, middle, end = w * t * u * u, w * t * t * (number(3) - t - t), -w * t * t * u
            for f in range(channels):
                z[row, f] = (
                    table[k, 0, f]
                    + start * table[k, 1, f]
                    + middle * table[k, 2, f]
                    + end * table[k + 1, 1, f]
                    + terms[0, i, f]
                    + terms[1, j, f]
                )
            row += 1


@inlined
def _add_scaled(values, row, factor, x, sender, out, receiver):
    """Add the tensors of a sender, times the factors of their parts, to those of a receiver."""
    channels = x.shape[2]
    for f in range(channels):
        out[0, receiver, f] += factor * values[row, f] * x[0, sender, f]
    for c in range(1, 4):
        for f in range(channels):
            out[c, receiver, f] += factor * values[row, channels + f] * x[c, sender, f]
    for c in range(4, 9):
        for f in range(channels):
            out[c, receiver, f] += factor * values[row, channels + channels + f] * x[c, sender, f]


@loop
def _sum_messages(
    values, slot_begin, slot_end, senders, distance, cutoffs, y, message, first, last
):
    """Sum the messages of a block of rows."""
    number, channels = y.dtype.type, y.shape[2]
    lower, upper = cutoffs[0], cutoffs[1]
    row = 0
    for i in range(first, last):
        for c in range(9):
            for f in range(channels):
                message[c, i, f] = 0
        own, _ = _cosine_cutoff(0.0, lower, upper)
        _add_scaled(values, row, number(own), y, i, message, i)
        row += 1
        for e in range(slot_begin[i], slot_end[i]):
            cutoff, _ = _cosine_cutoff(np.float64(distance[e]), lower, upper)
            _add_scaled(values, row, number(cutoff), y, senders[e], message, i)
            row += 1


@inlined
def _row_gradients(grad, y, i, j, values, grad_z3, row, cutoff):
    """Write gradients of a row, and turn its values into factors; return the sum of products."""
    channels, total = y.shape[2], grad.dtype.type(0)
    for f in range(channels):
        a = grad[0, i, f] * y[0, j, f]
        b = grad[1, i, f] * y[1, j, f] + grad[2, i, f] * y[2, j, f] + grad[3, i, f] * y[3, j, f]
        c = (
            grad[4, i, f] * y[4, j, f]
            + grad[5, i, f] * y[5, j, f]
            + grad[6, i, f] * y[6, j, f]
            + grad[7, i, f] * y[7, j, f]
            + grad[8, i, f] * y[8, j, f]
        )
        g, h = channels + f, channels + channels + f
        total += a * values[row, f] + b * values[row, g] + c * values[row, h]
        grad_z3[row, f] = cutoff * a
        grad_z3[row, g] = cutoff * b
        grad_z3[row, h] = cutoff * c
    for f in range(values.shape[1]):
        values[row, f] *= cutoff
    return total


@loop
def _factor_gradients(
    grad, y, slot_begin, slot_end, senders, origin, reverse, distance, cutoffs, accumulate,
    values, grad_z3, slope, first, last,
):  # fmt: skip
    """Write the gradients of a block's values, and those of distances through the cutoff."""
    number = y.dtype.type
    lower, upper = cutoffs[0], cutoffs[1]
    row = 0
    for i in range(first, last):
        own, _ = _cosine_cutoff(0.0, lower, upper)
        _row_gradients(grad, y, i, i, values, grad_z3, row, number(own))
        row += 1
        for e in range(slot_begin[i], slot_end[i]):
            cutoff, cutoff_slope = _cosine_cutoff(np.float64(distance[e]), lower, upper)
            found = _row_gradients(grad, y, i, senders[e], values, grad_z3, row, number(cutoff))
            found *= number(cutoff_slope)
            k = reverse[origin[e]]
            slope[k] = slope[k] + found if accumulate else found
            row += 1


@loop
def _distance_gradients(
    grad_z1, table, slot_begin, slot_end, origin, reverse, interval, fraction,
    slope, received, first, last,
):  # fmt: skip
    """Add the gradients of distances through the first map, and sum those of receivers' terms."""
    number, channels = table.dtype.type, grad_z1.shape[1]
    row = 0
    for i in range(first, last):
        for f in range(channels):
            received[i, f] = grad_z1[row, f]
        row += 1
        for e in range(slot_begin[i], slot_end[i]):
            k, t = interval[e], fraction[e]
            u, found = number(1) - t, number(0)
            start, middle, end = u * (u - t - t), number(6) * t * u, t * (t - u - u)
            for f in range(channels):
                received[i, f] += grad_z1[row, f]
                found += grad_z1[row, f] * (
                    start * table[k, 1, f] + middle * table[k, 2, f] + end * table[k + 1, 1, f]
                )
            slope[reverse[origin[e]]] += found
            row += 1


@loop
def _sum_sent(
    factors, grad_z1, opposites, slot_begin, slot_end, senders, grad, direct, grad_y, grad_sent,
    first, last,
):  # fmt: skip
    """Sum gradients over the edges that atoms send, which are opposite to those they receive."""
    one, channels = grad.dtype.type(1), grad.shape[2]
    row = np.int64(slot_begin[0] * 0)
    for i in range(first):
        row += slot_end[i] - slot_begin[i] + 1
    for i in range(first, last):
        for c in range(9):
            for f in range(channels):
                grad_y[c, i, f] = direct[c, i, f]
        _add_scaled(factors, row, one, grad, i, grad_y, i)
        for f in range(channels):
            grad_sent[i, f] = grad_z1[row, f]
        row += 1
        for e in range(slot_begin[i], slot_end[i]):
            k = opposites[row]
            _add_scaled(factors, k, one, grad, senders[e], grad_y, i)
            for f in range(channels):
                grad_sent[i, f] += grad_z1[k, f]
            row += 1
