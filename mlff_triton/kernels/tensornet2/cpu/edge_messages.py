"""Messages with factors from a network of distances and charges.

Products with the maps of the network take blocks of rows, which stay in a processor's cache until
their messages are summed. Arguments and results are those of
`mlff_triton.kernels.tensornet2.reference.edge_messages`, except that gradients of the charges of
receivers are summed for each atom, and none is returned for an edge.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from mlff_triton.kernels.common.cpu.activations import (
    SILU,
    activate,
    activate_with_slope,
    silu_with_slope,
)
from mlff_triton.kernels.common.cpu.algebra import algebra
from mlff_triton.kernels.common.cpu.arrays import Array
from mlff_triton.kernels.common.cpu.compilation import (
    as_arrays,
    inlined,
    loop,
    run,
    run_part,
)
from mlff_triton.kernels.common.cpu.linear import bias_of_map, map_parts
from mlff_triton.kernels.common.cpu.packed import transposed_weight
from mlff_triton.kernels.common.cpu.radial_table import slope_weights, weights
from mlff_triton.kernels.common.cpu.tensors import (
    add,
    dot_parts,
    load_wide,
    scale_parts,
    store_wide,
)
from mlff_triton.kernels.common.cpu.threads import in_parallel, own_threads
from mlff_triton.kernels.common.cpu.vectors import (
    lanes_of,
    load_vector,
    spread,
    store_vector,
    total,
)
from mlff_triton.kernels.tensornet2.cpu.edge_rows import blocks
from mlff_triton.kernels.types.edge_rows import EdgeRows, HiddenRows
from mlff_triton.kernels.types.edges import Edges
from mlff_triton.kernels.types.interaction_network import InteractionNetwork

FEWEST = 16
"""Atoms of a range, whose edges are worth a thread."""


@own_threads()
def edge_messages(
    y: Tensor, terms: Tensor, network: InteractionNetwork, edges: Edges, rows: EdgeRows
) -> tuple[Tensor, EdgeRows]:
    """Sum the messages to M receivers: [9, M, F]; keep rows of hidden values."""
    n, channels, lanes = network, y.shape[2], lanes_of(y.shape[2], y.element_size())
    assert rows.partners is not None
    atoms, slots = rows.partners.atoms, rows.partners.slots
    message, cutoff = y.new_empty(9, len(rows.ends), channels), y.new_empty(len(atoms), 2)
    z3, first_slope, second_slope = (y.new_empty(len(atoms), k * channels) for k in (3, 1, 2))
    kept = HiddenRows(z3, first_slope, second_slope, cutoff)
    geometry = edges.distance, edges.interval, edges.fraction, edges.width
    by_charge = n.table, n.own, terms, rows.ends, atoms, slots, *geometry, n.cutoffs, lanes, cutoff
    is_silu, of_first_map = n.activation in SILU, as_arrays(*by_charge)
    by_value = as_arrays(is_silu, rows.ends, atoms, cutoff, y, lanes, message)
    second, third = _map(n.second, n.second_bias), _map(n.third, n.third_bias)
    rows_of_z3, rows_of_first, rows_of_second = as_arrays(z3, first_slope, second_slope)

    def work(first: int, last: int, begin: int, end: int) -> None:
        hidden = np.empty((end - begin, channels), rows_of_z3.dtype)
        run_part(_first_map, first, last, *of_first_map, hidden)
        activate_with_slope(hidden, n.activation, rows_of_first[begin:end])
        hidden = second(hidden)
        activate_with_slope(hidden, n.activation, rows_of_second[begin:end])
        values = third(hidden, rows_of_z3[begin:end])
        if not is_silu:
            values = activate(torch.from_numpy(values), n.activation).numpy()
        run_part(_sum_messages, first, last, values, *by_value)

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
    n, kept, partners = network, rows.hidden, rows.partners
    assert kept is not None
    assert partners is not None
    lanes, received = lanes_of(y.shape[2], y.element_size()), y.new_empty(grad.shape[1:])
    is_silu, opposites = n.activation in SILU, (rows.ends, partners.opposite_slots)
    tensors = partners.atoms, kept.cutoff, grad, y
    by_factor = as_arrays(*opposites, *tensors, is_silu, accumulate, lanes, slope)
    geometry = partners.slots, edges.interval, edges.fraction, n.table
    by_distance = as_arrays(*opposites, *geometry, lanes, received, slope)
    third, second = _map(n.third_adjoint), _map(n.second_adjoint)
    z3, first_slope, second_slope = kept.z3.numpy(), kept.first_slope.numpy(), kept.second_slope

    def work(first: int, last: int, begin: int, end: int) -> None:
        factors = z3[begin:end]
        grad_z3 = np.empty_like(factors)
        if not is_silu:
            activate_with_slope(factors, n.activation, grad_z3)
        run_part(_factor_gradients, first, last, *by_factor, factors, grad_z3)
        grad_z2 = third(grad_z3)
        torch.from_numpy(grad_z2).mul_(second_slope[begin:end])
        grad_h1 = second(grad_z2)
        run_part(_distance_gradients, first, last, *by_distance, grad_h1, first_slope[begin:end])

    in_parallel(work, blocks(rows))
    grad_y, grad_sent = torch.empty_like(y), y.new_empty(y.shape[1:])
    ends = torch.searchsorted(partners.sent_by, torch.arange(y.shape[1]), right=True)
    sent = ends, partners.sent, partners.sent_to, kept.z3, kept.first_slope
    given = *sent, grad, direct, lanes, grad_y, grad_sent
    run(_sum_sent, y.shape[1], *given, fewest=FEWEST)
    n_charges = len(n.charges)
    by_atom = torch.mm(received, n.receiver)[:, :n_charges]
    return grad_y, grad_sent, y.new_empty(0, n_charges), by_atom


def _map(weight: Tensor, bias: Tensor | None = None) -> Callable[..., Array]:
    """Return a map of rows [R, in] by weights [out, in], in the calling thread, to [R, out]."""
    w, lanes = transposed_weight(weight), lanes_of(len(weight), weight.element_size())
    b = bias_of_map(bias, w)

    def mapped(rows: Array, out: Array | None = None) -> Array:
        found = np.empty((len(rows), w.shape[2]), w.dtype) if out is None else out
        run_part(map_parts, 0, len(rows), rows[None], w, b, lanes, found[None])
        return found

    return mapped


@inlined
def _cosine_cutoff(distance, lower, upper):
    """Return the cosine cutoff of a distance, and its derivative."""
    if distance >= upper or distance <= lower > 0.0:
        return 0.0, 0.0
    angle, sign = (2.0 * math.pi / (upper - lower), -0.5) if lower > 0.0 else (math.pi / upper, 0.5)
    phase = angle * (distance - max(lower, 0.0))
    return 0.5 + sign * math.cos(phase), -sign * angle * math.sin(phase)


@inlined
def _start(ends, first):
    """Return the first row of an atom."""
    return ends[first - 1] if first > 0 else 0


@algebra
def _load_rows(x, row, f, channels, lanes):
    """Return the values of the three parts of a row [3 F]."""
    return (
        load_vector(x, (row, f), lanes),
        load_vector(x, (row, channels + f), lanes),
        load_vector(x, (row, channels + channels + f), lanes),
    )


@algebra
def _silu_of_rows(z):
    """Return values and derivatives of the three parts of a row."""
    return silu_with_slope(z[0]), silu_with_slope(z[1]), silu_with_slope(z[2])


@algebra
def _store_rows(x, row, f, channels, parts):
    """Write the values of the three parts of a row [3 F]."""
    store_vector(x, (row, f), parts[0])
    store_vector(x, (row, channels + f), parts[1])
    store_vector(x, (row, channels + channels + f), parts[2])


@loop
def _first_map(
    table, own, terms, ends, atoms, slots, distance, interval, fraction, width, limits, lanes,
    cutoff, z, first, last,
):  # fmt: skip
    """Write the first hidden values of a block of rows, and all of their cutoffs."""
    begin = row = _start(ends, first)
    for i in range(first, last):
        while row < ends[i]:
            e, j = slots[row], atoms[row]
            d = np.float64(distance[e]) if e >= 0 else 0.0
            cutoff[row, 0], cutoff[row, 1] = _cosine_cutoff(d, limits[0], limits[1])
            for f in range(0, z.shape[1], len(lanes)):
                found = load_vector(terms, (0, i, f), lanes) + load_vector(terms, (1, j, f), lanes)
                if e < 0:
                    found += load_vector(own, (f,), lanes)
                else:
                    k, w = interval[e], weights(fraction[e], width[e])
                    found += load_vector(table, (k, 0, f), lanes) + (
                        w[0] * load_vector(table, (k, 1, f), lanes)
                        + w[1] * load_vector(table, (k, 2, f), lanes)
                        + w[2] * load_vector(table, (k + 1, 1, f), lanes)
                    )
                store_vector(z, (row - begin, f), found)
            row += 1


@loop
def _sum_messages(values, is_silu, ends, atoms, cutoff, y, lanes, message, first, last):
    """Sum the messages of a block of rows, whose values are activated unless by SiLU."""
    channels, zero = y.shape[2], spread(y.dtype.type(0), lanes)
    begin = start = _start(ends, first)
    for i in range(first, last):
        for f in range(0, channels, len(lanes)):
            sums = zero, zero, zero, zero, zero, zero, zero, zero, zero
            for row in range(start, ends[i]):
                v, c = _load_rows(values, row - begin, f, channels, lanes), cutoff[row, 0]
                if is_silu:
                    v0, v1, v2 = _silu_of_rows(v)
                    v = v0[0], v1[0], v2[0]
                factors = c * v[0], c * v[1], c * v[2]
                sums = add(sums, scale_parts(factors, load_wide(y, atoms[row], f, lanes)))
            store_wide(message, i, f, sums)
        start = ends[i]


@loop
def _factor_gradients(
    ends, opposite_slots, atoms, cutoff, grad, y, is_silu, accumulate, lanes, slope,
    factors, grad_z3, first, last,
):  # fmt: skip
    """Write the factors of a block, and gradients of distances through the cutoff.

    Factors replace the last hidden values before SiLU, or values of another activation.
    Gradients replace the slopes of that activation.
    """
    channels, zero = y.shape[2], spread(y.dtype.type(0), lanes)
    begin = row = _start(ends, first)
    for i in range(first, last):
        while row < ends[i]:
            found, c, k = zero, cutoff[row, 0], opposite_slots[row]
            for f in range(0, channels, len(lanes)):
                sent = load_wide(y, atoms[row], f, lanes)
                a, b, s = dot_parts(load_wide(grad, i, f, lanes), sent)
                v = _load_rows(factors, row - begin, f, channels, lanes)
                if is_silu:
                    v0, v1, v2 = _silu_of_rows(v)
                    v, d = (v0[0], v1[0], v2[0]), (v0[1], v1[1], v2[1])
                else:
                    d = _load_rows(grad_z3, row - begin, f, channels, lanes)
                found += a * v[0] + b * v[1] + s * v[2]
                parts = c * a * d[0], c * b * d[1], c * s * d[2]
                _store_rows(grad_z3, row - begin, f, channels, parts)
                _store_rows(factors, row - begin, f, channels, (c * v[0], c * v[1], c * v[2]))
            if k >= 0:
                through_cutoff = cutoff[row, 1] * total(found)
                slope[k] = slope[k] + through_cutoff if accumulate else through_cutoff
            row += 1


@loop
def _distance_gradients(
    ends, opposite_slots, slots, interval, fraction, table, lanes, received, slope,
    grad_h1, grad_z1, first, last,
):  # fmt: skip
    """Add the gradients of distances through the first map, and sum those of receivers' terms.

    Gradients of the first hidden values replace the slopes of the activation.
    """
    zero = spread(table.dtype.type(0), lanes)
    begin = row = _start(ends, first)
    for i in range(first, last):
        for f in range(0, received.shape[1], len(lanes)):
            g = load_vector(grad_h1, (row - begin, f), lanes)
            g *= load_vector(grad_z1, (row - begin, f), lanes)
            store_vector(grad_z1, (row - begin, f), g)
            store_vector(received, (i, f), g)
        row += 1
        while row < ends[i]:
            e, found = slots[row], zero
            k, w = interval[e], slope_weights(fraction[e])
            for f in range(0, received.shape[1], len(lanes)):
                g = load_vector(grad_h1, (row - begin, f), lanes)
                g *= load_vector(grad_z1, (row - begin, f), lanes)
                store_vector(grad_z1, (row - begin, f), g)
                store_vector(received, (i, f), load_vector(received, (i, f), lanes) + g)
                found += g * (
                    w[0] * load_vector(table, (k, 1, f), lanes)
                    + w[1] * load_vector(table, (k, 2, f), lanes)
                    + w[2] * load_vector(table, (k + 1, 1, f), lanes)
                )
            slope[opposite_slots[row]] += total(found)
            row += 1


@loop
def _sum_sent(
    ends, sent, sent_to, factors, grad_z1, grad, direct, lanes, grad_y, grad_sent, first, last
):
    """Sum gradients over the edges that atoms send."""
    channels, zero = grad.shape[2], spread(grad.dtype.type(0), lanes)
    start = _start(ends, first)
    for i in range(first, last):
        for f in range(0, channels, len(lanes)):
            sums = zero, zero, zero, zero, zero, zero, zero, zero, zero
            by_term = zero
            if i < direct.shape[1]:
                sums = load_wide(direct, i, f, lanes)
            for k in range(start, ends[i]):
                parts = _load_rows(factors, sent[k], f, channels, lanes)
                sums = add(sums, scale_parts(parts, load_wide(grad, sent_to[k], f, lanes)))
                by_term += load_vector(grad_z1, (sent[k], f), lanes)
            store_wide(grad_y, i, f, sums)
            store_vector(grad_sent, (i, f), by_term)
        start = ends[i]
