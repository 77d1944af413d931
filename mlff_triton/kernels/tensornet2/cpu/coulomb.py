"""Coulomb energy of partial charges.

Arguments and results are those of `mlff_triton.kernels.tensornet2.reference.coulomb`. All pairs of
atoms are visited a few at a time, so memory grows with the number of atoms.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from mlff_triton.kernels.common.cpu.algebra import algebra
from mlff_triton.kernels.common.cpu.compilation import allocating_loop, inlined, run
from mlff_triton.kernels.common.cpu.vectors import (
    lanes_of,
    load_vector,
    spread,
    store_vector,
    total,
)
from mlff_triton.kernels.tensornet2.reference.coulomb import LARGEST_DECAY
from mlff_triton.kernels.types.charges import (
    DAMPING,
    AtomOrder,
    CoulombSums,
    EwaldField,
    ReactionField,
)
from mlff_triton.kernels.types.edges import Edges

PARTNERS = 128
"""Partners of an atom that are taken together."""
PAIRS = 2048
"""Pairs of atoms that are worth a thread."""
WIDTH = 8
"""The partners of a system are padded to a multiple of this, the lanes of vectors in float64."""
FAR = 4e12
"""Coordinate of atoms without charge that pad a system, Å; all others are closer to the origin."""


def coulomb_pairs(
    positions: Tensor, charges: Tensor, weights: Tensor, mean_weights: Tensor, order: AtomOrder
) -> CoulombSums:
    """Compute energies over all pairs, with gradients and sums over atoms."""
    rank, counts = order.rank.long(), order.system_ptr.diff().long()
    padded = -(-counts // WIDTH) * WIDTH
    begin = padded.cumsum(0) - padded
    bounds = torch.stack([begin, begin + padded]).repeat_interleave(counts, dim=1)
    places = torch.arange(len(rank)) + (begin - order.system_ptr[:-1]).repeat_interleave(counts)
    used = weights.nonzero().flatten()
    points = positions.new_full((3, int(padded.sum())), FAR)
    points[:, places] = positions.T
    q = points.new_zeros(len(used), points.shape[1])
    q[:, places] = charges[rank[:, None], used].T.double()
    computed, first = order.computed, order.computed.start or 0
    rank, places, bounds = rank[computed], places[computed], bounds[:, computed].contiguous()
    sums, potential = _empty_sums(charges[computed]), q.new_zeros(len(rank), len(used))
    lanes = lanes_of(WIDTH, q.element_size())
    arrays = points, q, weights[used].double(), places, bounds, lanes
    results = potential, sums.forces, sums.atoms
    fewest = max(1, PAIRS // int(padded.max()))
    run(_coulomb_pairs, len(rank), *arrays, *results, fewest=fewest)
    sums.grad_charges.zero_()
    sums.grad_charges[rank[:, None] - first, used] = potential.mul_(2).to(charges.dtype)
    sums.charges.copy_((charges[rank] * mean_weights).sum(1))
    return sums


def coulomb_edges(
    charges: Tensor,
    weights: Tensor,
    mean_weights: Tensor,
    edges: Edges,
    field: ReactionField | EwaldField,
    order: Tensor,
) -> CoulombSums:
    """Compute energies over edges, with gradients and sums over atoms."""
    n_atoms = len(edges.slot_begin)
    sums, user = _empty_sums(charges[:n_atoms]), order[:n_atoms].long()
    slots = edges.slot_begin, edges.slot_end, edges.senders, edges.direction, edges.distance
    results = sums.grad_charges, sums.forces, sums.atoms
    given = field.constants, isinstance(field, EwaldField), user
    run(_coulomb_edges, n_atoms, charges, weights, *slots, *given, *results)
    sums.charges[user] = (charges[:n_atoms] * mean_weights).sum(1)
    return sums


def _empty_sums(charges: Tensor) -> CoulombSums:
    """Return memory for the results."""
    forces = charges.new_empty(len(charges), 3, dtype=torch.float64)
    atoms = forces.new_empty(7, len(charges))
    return CoulombSums(torch.empty_like(charges), torch.empty_like(charges[:, 0]), forces, atoms)


@inlined
def _damping(distance):
    """Return ``1 - exp(1 - 1 / (1 - (d / d0)^2))``, which is one beyond d0, and its derivative."""
    squared = (distance / DAMPING) ** 2
    if squared >= LARGEST_DECAY:
        return 1.0, 0.0
    rest = 1.0 - squared
    exponent = -squared / rest
    slope = math.exp(exponent) * 2.0 * distance / (DAMPING * DAMPING * rest * rest)
    return -math.expm1(exponent), slope


@inlined
def _field(distance, constants, ewald):
    """Return the energy of unit charges at a distance, and its derivative."""
    damping, slope = _damping(distance)
    if ewald:
        x = constants[1] * distance
        energy = (math.erfc(x) - (1.0 - damping)) / distance
        decay = 2.0 / math.sqrt(math.pi) * constants[1] * math.exp(-x * x)
        return energy, (slope - decay - energy) / distance
    bare = 1.0 / distance + constants[1] * distance * distance - constants[2]
    bare_slope = 2.0 * constants[1] * distance - 1.0 / (distance * distance)
    return damping * bare, slope * bare + damping * bare_slope


@algebra
def _vectors(point, positions, k, lanes):
    """Return the vectors to an atom from its partners from number ``k`` on."""
    return (
        point[0] - load_vector(positions, (0, k), lanes),
        point[1] - load_vector(positions, (1, k), lanes),
        point[2] - load_vector(positions, (2, k), lanes),
    )


@inlined
def _pair_factors(squared, own, factor, along, count):
    """Write energies per unit of charges, and their derivatives divided by the distance."""
    for k in range(count):
        factor[k] = 1.0 / math.sqrt(squared[k])
        along[k] = -factor[k] / squared[k]
    for k in range(count):
        if squared[k] < DAMPING * DAMPING:
            damping, slope = _damping(math.sqrt(squared[k]))
            along[k] = damping * along[k] + slope / squared[k]
            factor[k] *= damping
    if 0 <= own < count:
        factor[own] = along[own] = 0.0


@allocating_loop
def _coulomb_pairs(
    positions, charges, weights, places, bounds, lanes, potential, forces, atoms, first, last
):
    """Sum over the partners of each atom, for charges [C, places]."""
    factor, along = np.empty(PARTNERS), np.empty(PARTNERS)
    squared, product = np.empty(PARTNERS), np.empty(PARTNERS)
    zero = spread(0.0, lanes)
    for i in range(first, last):
        p = places[i]
        point = positions[0, p], positions[1, p], positions[2, p]
        energy = sx = sy = sz = zero
        for start in range(bounds[0, i], bounds[1, i], PARTNERS):
            count = min(PARTNERS, bounds[1, i] - start)
            for k in range(0, count, WIDTH):
                x, y, z = _vectors(point, positions, start + k, lanes)
                store_vector(squared, (k,), x * x + y * y + z * z)
                store_vector(product, (k,), zero)
            if 0 <= p - start < count:
                squared[p - start] = 1.0
            _pair_factors(squared, p - start, factor, along, count)
            for q in range(len(weights)):
                weighted, sums = weights[q] * charges[q, p], zero
                for k in range(0, count, WIDTH):
                    c = load_vector(charges, (q, start + k), lanes)
                    store_vector(product, (k,), load_vector(product, (k,), lanes) + weighted * c)
                    sums += load_vector(factor, (k,), lanes) * c
                potential[i, q] += weights[q] * total(sums)
            for k in range(0, count, WIDTH):
                x, y, z = _vectors(point, positions, start + k, lanes)
                c = load_vector(product, (k,), lanes)
                energy += c * load_vector(factor, (k,), lanes)
                c *= 2.0 * load_vector(along, (k,), lanes)
                sx += c * x
                sy += c * y
                sz += c * z
        gx, gy, gz = total(sx), total(sy), total(sz)
        forces[i, 0], forces[i, 1], forces[i, 2] = -gx, -gy, -gz
        b = bounds[0, i]
        x, y, z = point[0] - positions[0, b], point[1] - positions[1, b], point[2] - positions[2, b]
        atoms[0, i] = total(energy)
        atoms[1, i], atoms[2, i], atoms[3, i] = x * gx, y * gy, z * gz
        atoms[4, i], atoms[5, i] = (y * gz + z * gy) / 2, (x * gz + z * gx) / 2
        atoms[6, i] = (x * gy + y * gx) / 2


@allocating_loop
def _coulomb_edges(
    charges, weights, slot_begin, slot_end, senders, direction, distance, constants, ewald, order,
    grad_charges, forces, atoms, first, last,
):  # fmt: skip
    cutoff, n_charges = constants[0], len(weights)
    potential = np.empty(n_charges)
    for i in range(first, last):
        gx = gy = gz = xx = yy = zz = yz = xz = xy = energy = 0.0
        for q in range(n_charges):
            potential[q] = 0.0
        for e in range(slot_begin[i], slot_end[i]):
            d, j, product = np.float64(distance[e]), senders[e], 0.0
            if d >= cutoff:
                continue
            factor, slope = _field(d, constants, ewald)
            for q in range(n_charges):
                weighted = np.float64(weights[q]) * np.float64(charges[j, q])
                potential[q] += factor * weighted
                product += weighted * charges[i, q]
            slope *= product
            u, v = np.float64(direction[0, e]), np.float64(direction[1, e])
            w = np.float64(direction[2, e])
            x, y, z = slope * u, slope * v, slope * w
            gx += x
            gy += y
            gz += z
            energy += factor * product
            xx += d * u * x
            yy += d * v * y
            zz += d * w * z
            yz += d * v * z
            xz += d * u * z
            xy += d * u * y
        for q in range(n_charges):
            grad_charges[i, q] = 2.0 * potential[q]
        k = order[i]
        forces[k, 0], forces[k, 1], forces[k, 2] = -2.0 * gx, -2.0 * gy, -2.0 * gz
        atoms[0, k], atoms[1, k], atoms[2, k], atoms[3, k] = energy, xx, yy, zz
        atoms[4, k], atoms[5, k], atoms[6, k] = yz, xz, xy
