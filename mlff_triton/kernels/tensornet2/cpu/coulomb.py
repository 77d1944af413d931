"""Coulomb energy of partial charges.

Arguments and results are those of `mlff_triton.kernels.tensornet2.reference.coulomb`. All pairs of
atoms are visited a few at a time, so memory grows with the number of atoms.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from mlff_triton.kernels.common.cpu.compilation import inlined, loop, run
from mlff_triton.kernels.tensornet2.reference.coulomb import LARGEST_DECAY
from mlff_triton.kernels.types.charges import DAMPING, AtomOrder, CoulombSums, ReactionField
from mlff_triton.kernels.types.edges import Edges

PARTNERS = 128
"""Partners of an atom that are taken together."""


def coulomb_pairs(
    positions: Tensor, charges: Tensor, weights: Tensor, mean_weights: Tensor, order: AtomOrder
) -> CoulombSums:
    """Compute energies over all pairs, with gradients and sums over atoms."""
    rank, counts = order.rank.long(), order.system_ptr.diff().long()
    used = weights.nonzero().flatten()
    q = charges[rank[:, None], used].double()
    bounds = torch.stack([order.system_ptr[:-1], order.system_ptr[1:]]).long()
    bounds = bounds.repeat_interleave(counts, dim=1)
    sums = _empty_sums(charges)
    potential = torch.zeros_like(q)
    arrays = positions.T.contiguous(), q.T.contiguous(), weights[used].double(), bounds
    run(_coulomb_pairs, len(charges), *arrays, potential, sums.forces, sums.atoms)
    sums.grad_charges.zero_()
    sums.grad_charges[rank[:, None], used] = potential.mul_(2).to(charges.dtype)
    torch.mv(charges[rank], mean_weights, out=sums.charges)
    return sums


def coulomb_edges(
    charges: Tensor,
    weights: Tensor,
    mean_weights: Tensor,
    edges: Edges,
    field: ReactionField,
    order: Tensor,
) -> CoulombSums:
    """Compute energies over edges, with gradients and sums over atoms."""
    sums, user = _empty_sums(charges), order.long()
    slots = edges.slot_begin, edges.slot_end, edges.senders, edges.direction, edges.distance
    results = sums.grad_charges, sums.forces, sums.atoms
    run(_coulomb_edges, len(charges), charges, weights, *slots, field.constants, user, *results)
    sums.charges[user] = torch.mv(charges, mean_weights)
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


@loop
def _coulomb_pairs(positions, charges, weights, bounds, potential, forces, atoms, first, last):
    """Sum over the partners of each atom, for charges [C, N] in the user's order."""
    n_charges = len(weights)
    factor, along, product = np.empty(PARTNERS), np.empty(PARTNERS), np.empty(PARTNERS)
    for i in range(first, last):
        begin, end = bounds[0, i], bounds[1, i]
        x, y, z = positions[0, i], positions[1, i], positions[2, i]
        energy = gx = gy = gz = 0.0
        for start in range(begin, end, PARTNERS):
            count = min(PARTNERS, end - start)
            for k in range(count):
                dx, dy = x - positions[0, start + k], y - positions[1, start + k]
                dz = z - positions[2, start + k]
                squared = dx * dx + dy * dy + dz * dz
                factor[k] = 1.0 / math.sqrt(squared)
                along[k] = -1.0 / squared
                product[k] = 0.0
            for k in range(count):
                if start + k == i:
                    factor[k] = along[k] = 0.0
                elif factor[k] > 1.0 / DAMPING:
                    damping, slope = _damping(1.0 / factor[k])
                    along[k] = damping * along[k] + slope * factor[k]
                    factor[k] *= damping
            for q in range(n_charges):
                weighted, total = weights[q] * charges[q, i], 0.0
                for k in range(count):
                    product[k] += weighted * charges[q, start + k]
                    total += factor[k] * charges[q, start + k]
                potential[i, q] += weights[q] * total
            for k in range(count):
                dx, dy = x - positions[0, start + k], y - positions[1, start + k]
                dz = z - positions[2, start + k]
                inverse = 0.0 if start + k == i else 2.0 / math.sqrt(dx * dx + dy * dy + dz * dz)
                scaled = along[k] * product[k] * inverse
                energy += factor[k] * product[k]
                gx += scaled * dx
                gy += scaled * dy
                gz += scaled * dz
        forces[i, 0], forces[i, 1], forces[i, 2] = -gx, -gy, -gz
        dx, dy, dz = x - positions[0, begin], y - positions[1, begin], z - positions[2, begin]
        atoms[0, i] = energy
        atoms[1, i], atoms[2, i], atoms[3, i] = dx * gx, dy * gy, dz * gz
        atoms[4, i] = (dy * gz + dz * gy) / 2
        atoms[5, i] = (dx * gz + dz * gx) / 2
        atoms[6, i] = (dx * gy + dy * gx) / 2


@loop
def _coulomb_edges(
    charges, weights, slot_begin, slot_end, senders, direction, distance, constants, order,
    grad_charges, forces, atoms, first, last,
):  # fmt: skip
    cutoff, quadratic, constant = constants[0], constants[1], constants[2]
    n_charges = len(weights)
    potential = np.empty(n_charges)
    for i in range(first, last):
        gx = gy = gz = xx = yy = zz = yz = xz = xy = energy = 0.0
        for q in range(n_charges):
            potential[q] = 0.0
        for e in range(slot_begin[i], slot_end[i]):
            d, j, product = np.float64(distance[e]), senders[e], 0.0
            if d >= cutoff:
                continue
            damping, slope = _damping(d)
            bare = 1.0 / d + quadratic * d * d - constant
            factor = damping * bare
            slope = slope * bare + damping * (2.0 * quadratic * d - 1.0 / (d * d))
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
