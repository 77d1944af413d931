"""First tensor of each atom, and its gradient along the edges.

Arguments and results are those of `mlff_triton.kernels.tensornet.tensor_embedding`.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mlff_triton.kernels.common.cpu.compilation import loop, run
from mlff_triton.kernels.common.cpu.radial_table import look_up, look_up_slope
from mlff_triton.kernels.common.cpu.tensors import load, norm
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
    run(_embed, n_atoms, species, receiver, sender, table, own, *slots, *geometry, x, norms)
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
    elements = species, receiver, sender
    run(_embed_bwd, len(edges.slot_begin), grad, *elements, table, *slots, *geometry, given, out)
    return out


@loop
def _embed(
    species, receiver, sender, table, own, slot_begin, slot_end, senders,
    interval, fraction, width, direction, x, norms, first, last,
):  # fmt: skip
    number, channels = table.dtype.type, table.shape[3]
    factors = np.empty((3, channels), table.dtype)
    sums = np.empty((9, channels), table.dtype)
    for i in range(first, last):
        z = species[i]
        for f in range(channels):
            sums[0, f] = (receiver[z, f] + sender[z, f]) * own[f]
        sums[1:] = 0
        for e in range(slot_begin[i], slot_end[i]):
            look_up(table, interval[e], fraction[e], width[e], factors)
            other = species[senders[e]]
            u, v, w = direction[0, e], direction[1, e], direction[2, e]
            third = (u * u + v * v + w * w) / number(3)
            uu, vv = u * u - third, v * v - third
            uv, uw, vw = u * v, u * w, v * w
            for f in range(channels):
                pair = receiver[z, f] + sender[other, f]
                vector, tensor = pair * factors[1, f], pair * factors[2, f]
                sums[0, f] += pair * factors[0, f]
                sums[1, f] += u * vector
                sums[2, f] += v * vector
                sums[3, f] += w * vector
                sums[4, f] += uu * tensor
                sums[5, f] += uv * tensor
                sums[6, f] += uw * tensor
                sums[7, f] += vv * tensor
                sums[8, f] += vw * tensor
        x[:, i] = sums
        for f in range(channels):
            norms[i, f] = norm(load(x, i, f))


@loop
def _embed_bwd(
    grad, species, receiver, sender, table, slot_begin, slot_end, senders, origin,
    interval, fraction, width, direction, distance, slope, out, first, last,
):  # fmt: skip
    number, channels = table.dtype.type, table.shape[3]
    factors = np.empty((3, channels), table.dtype)
    slopes = np.empty((3, channels), table.dtype)
    for i in range(first, last):
        z = species[i]
        for e in range(slot_begin[i], slot_end[i]):
            look_up(table, interval[e], fraction[e], width[e], factors)
            look_up_slope(table, interval[e], fraction[e], slopes)
            other = species[senders[e]]
            u, v, w = direction[0, e], direction[1, e], direction[2, e]
            third = (u * u + v * v + w * w) / number(3)
            uu, vv = u * u - third, v * v - third
            uv, uw, vw = u * v, u * w, v * w
            radial = a0 = a1 = a2 = s00 = s01 = s02 = s11 = s12 = number(0)
            for f in range(channels):
                pair = receiver[z, f] + sender[other, f]
                _, g1, g2, g3, g4, g5, g6, g7, g8 = load(grad, i, f)
                vector, tensor = pair * factors[1, f], pair * factors[2, f]
                radial += pair * (
                    slopes[0, f] * grad[0, i, f]
                    + slopes[1, f] * (u * g1 + v * g2 + w * g3)
                    + slopes[2, f] * (uu * g4 + uv * g5 + uw * g6 + vv * g7 + vw * g8)
                )
                a0 += vector * g1
                a1 += vector * g2
                a2 += vector * g3
                s00 += tensor * g4
                s01 += tensor * g5
                s02 += tensor * g6
                s11 += tensor * g7
                s12 += tensor * g8
            x = a0 + s00 * u + s00 * u + s01 * v + s02 * w
            y = a1 + s01 * u + s11 * v + s11 * v + s12 * w
            t = a2 + s02 * u + s12 * v
            k, inverse = origin[e], number(1) / distance[e]
            radial += slope[k] - (x * u + y * v + t * w) * inverse
            out[0, k] = radial * u + x * inverse
            out[1, k] = radial * v + y * inverse
            out[2, k] = radial * w + t * inverse
