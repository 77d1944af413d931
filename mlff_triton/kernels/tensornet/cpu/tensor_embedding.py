"""First tensor of each atom, and its gradient along the edges.

Arguments and results are those of `mlff_triton.kernels.tensornet.tensor_embedding`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.kernels.common.cpu.compilation import loop, run
from mlff_triton.kernels.common.cpu.packed import packed_table
from mlff_triton.kernels.common.cpu.radial_table import (
    look_up,
    look_up_both,
    slope_weights,
    weights,
)
from mlff_triton.kernels.common.cpu.tensors import load_wide, norm, store_wide
from mlff_triton.kernels.common.cpu.vectors import (
    lanes_of,
    load_vector,
    spread,
    store_vector,
    total,
)
from mlff_triton.kernels.types.edges import Edges


def tensor_embedding(
    species: Tensor,
    receiver: Tensor,
    sender: Tensor,
    table: Tensor,
    own: Tensor,
    edges: Edges,
) -> tuple[Tensor, Tensor]:
    """Compute the first tensors [9, M, F] of receivers, and their squared norms [M, F]."""
    n_atoms = len(edges.slot_begin)
    x = table.new_empty(9, n_atoms, table.shape[-1])
    norms = table.new_empty(n_atoms, table.shape[-1])
    geometry = edges.interval, edges.fraction, edges.width, edges.direction
    slots = edges.slot_begin, edges.slot_end, edges.senders
    lanes = lanes_of(table.shape[-1], table.element_size())
    elements = species, receiver, sender, packed_table(table), own
    run(_embed, n_atoms, *elements, *slots, *geometry, lanes, x, norms)
    return x, norms


def tensor_embedding_backward(
    grad: Tensor,
    species: Tensor,
    receiver: Tensor,
    sender: Tensor,
    table: Tensor,
    edges: Edges,
    slope: Tensor | None,
) -> Tensor:
    """Compute the gradient [3, slots] of the energy with respect to each edge vector."""
    out = torch.zeros_like(edges.direction)
    given = torch.zeros_like(edges.distance) if slope is None else slope
    geometry = edges.interval, edges.fraction, edges.width, edges.direction, edges.distance
    slots = edges.slot_begin, edges.slot_end, edges.senders, edges.origin
    lanes = lanes_of(table.shape[-1], table.element_size())
    arrays = grad, species, receiver, sender, packed_table(table), *slots, *geometry
    run(_embed_bwd, len(edges.slot_begin), *arrays, given, lanes, out)
    return out


@loop
def _embed(
    species, receiver, sender, table, own, slot_begin, slot_end, senders,
    interval, fraction, width, direction, lanes, x, norms, first, last,
):  # fmt: skip
    number = table.dtype.type
    zero = spread(number(0), lanes)
    for block in range(table.shape[0]):
        f = block * len(lanes)
        for i in range(first, last):
            z = species[i]
            received = load_vector(receiver, (z, f), lanes)
            c0 = (received + load_vector(sender, (z, f), lanes)) * load_vector(own, (f,), lanes)
            c1 = c2 = c3 = c4 = c5 = c6 = c7 = c8 = zero
            for e in range(slot_begin[i], slot_end[i]):
                w = weights(fraction[e], width[e])
                factors = look_up(table, block, interval[e], w, lanes)
                pair = received + load_vector(sender, (species[senders[e]], f), lanes)
                vector, tensor = pair * factors[1], pair * factors[2]
                u, v, t = direction[0, e], direction[1, e], direction[2, e]
                third = (u * u + v * v + t * t) / number(3)
                c0 += pair * factors[0]
                c1 += u * vector
                c2 += v * vector
                c3 += t * vector
                c4 += (u * u - third) * tensor
                c5 += (u * v) * tensor
                c6 += (u * t) * tensor
                c7 += (v * v - third) * tensor
                c8 += (v * t) * tensor
            components = c0, c1, c2, c3, c4, c5, c6, c7, c8
            store_wide(x, i, f, components)
            store_vector(norms, (i, f), norm(components))


@loop
def _embed_bwd(
    grad, species, receiver, sender, table, slot_begin, slot_end, senders, origin,
    interval, fraction, width, direction, distance, slope, lanes, out, first, last,
):  # fmt: skip
    number = table.dtype.type
    zero = spread(number(0), lanes)
    for i in range(first, last):
        z = species[i]
        for e in range(slot_begin[i], slot_end[i]):
            k, w, d = interval[e], weights(fraction[e], width[e]), slope_weights(fraction[e])
            u, v, t = direction[0, e], direction[1, e], direction[2, e]
            third = (u * u + v * v + t * t) / number(3)
            uu, vv, uv, ut, vt = u * u - third, v * v - third, u * v, u * t, v * t
            other = species[senders[e]]
            along = by_u = by_v = by_t = zero
            for block in range(table.shape[0]):
                f = block * len(lanes)
                factors, slopes = look_up_both(table, block, k, w, d, lanes)
                pair = load_vector(receiver, (z, f), lanes) + load_vector(sender, (other, f), lanes)
                g0, g1, g2, g3, g4, g5, g6, g7, g8 = load_wide(grad, i, f, lanes)
                along += pair * (
                    slopes[0] * g0
                    + slopes[1] * (u * g1 + v * g2 + t * g3)
                    + slopes[2] * (uu * g4 + uv * g5 + ut * g6 + vv * g7 + vt * g8)
                )
                vector, tensor = pair * factors[1], pair * factors[2]
                by_u += vector * g1 + tensor * ((u + u) * g4 + v * g5 + t * g6)
                by_v += vector * g2 + tensor * (u * g5 + (v + v) * g7 + t * g8)
                by_t += vector * g3 + tensor * (u * g6 + v * g8)
            a, b, c = total(by_u), total(by_v), total(by_t)
            m, inverse = origin[e], number(1) / distance[e]
            radial = total(along) + slope[m] - (a * u + b * v + c * t) * inverse
            out[0, m] = radial * u + a * inverse
            out[1, m] = radial * v + b * inverse
            out[2, m] = radial * t + c * inverse
