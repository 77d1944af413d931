"""Coulomb sums over pairs of two sets of charges.

Arguments and results are those of `mlff_triton.kernels.electrostatics.reference.cross_pairs`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mlff_triton.kernels.common.cpu.compilation import inlined, loop, run
from mlff_triton.kernels.electrostatics.types import COULOMB, PairTerms

PAIRS = 2048
"""Pairs that are worth a thread."""
DAMPED = 6.0
"""Damping lengths beyond which ``erfc(r / d)`` is below 3e-17, and nothing is left of it."""


def potentials_at(
    points: Tensor, sites: Tensor, charges: Tensor, box: Tensor | None, terms: PairTerms
) -> tuple[Tensor, Tensor]:
    """Compute the potential of charges at points, and its gradient."""
    potential, gradient = torch.empty_like(points[:, 0]), torch.empty_like(points)
    given = points, sites, charges, *_boxes(points, box), _numbers(terms)
    run(_potentials, len(points), *given, potential, gradient, fewest=_fewest(sites))
    return potential, gradient


def gradients_of(
    points: Tensor, charges: Tensor, sites: Tensor, box: Tensor | None, terms: PairTerms
) -> Tensor:
    """Compute the gradient of the potential that charges at points have at sites."""
    gradient = torch.empty_like(sites)
    given = points, sites, charges, *_boxes(points, box), _numbers(terms)
    run(_gradients, len(sites), *given, gradient, fewest=_fewest(points))
    return gradient


def _boxes(points: Tensor, box: Tensor | None) -> tuple[Tensor, bool]:
    """Return a box, and True if it is one."""
    return (points.new_zeros(3, 3), False) if box is None else (box, True)


def _numbers(terms: PairTerms) -> Tensor:
    return torch.tensor(terms, dtype=torch.float64)


def _fewest(others: Tensor) -> int:
    return max(1, PAIRS // max(len(others), 1))


@inlined
def _between(ends, i, starts, j, box, is_periodic):
    """Return the vector between two points or their nearest images, and its squared length."""
    x, y, z = ends[i, 0] - starts[j, 0], ends[i, 1] - starts[j, 1], ends[i, 2] - starts[j, 2]
    if is_periodic:
        n = round(z / box[2, 2])
        x, y, z = x - n * box[2, 0], y - n * box[2, 1], z - n * box[2, 2]
        n = round(y / box[1, 1])
        x, y = x - n * box[1, 0], y - n * box[1, 1]
        x -= round(x / box[0, 0]) * box[0, 0]
    return x, y, z, x * x + y * y + z * z


@inlined
def _complement(r, a):
    """Return ``erfc(a r) / r``, and its derivative divided by ``r``."""
    value = math.erfc(a * r) / r
    gaussian = 2.0 * a / math.sqrt(math.pi) * math.exp(-a * a * r * r)
    return value, -(value + gaussian) / (r * r)


@inlined
def _energy(squared, terms):
    """Return the energy of a pair of unit charges, and its derivative divided by the distance."""
    r = math.sqrt(squared)
    value = 1.0 / r
    slope = -value / squared
    if terms[1] > 0.0:
        value, slope = _complement(r, terms[1])
    value += terms[2] * squared - terms[3]
    slope += 2.0 * terms[2]
    if r < DAMPED * terms[4]:
        lost, slope_of_lost = _complement(r, 1.0 / terms[4])
        value -= lost
        slope -= slope_of_lost
    return value, slope


@loop
def _potentials(
    points, sites, charges, box, is_periodic, terms, potential, gradient, first, last
):  # fmt: skip
    limit = terms[0] * terms[0]
    for i in range(first, last):
        total = gx = gy = gz = 0.0
        for j in range(len(sites)):
            x, y, z, squared = _between(points, i, sites, j, box, is_periodic)
            if squared >= limit:
                continue
            value, slope = _energy(squared, terms)
            total += value * charges[j]
            slope *= charges[j]
            gx += slope * x
            gy += slope * y
            gz += slope * z
        potential[i] = COULOMB * total
        gradient[i, 0], gradient[i, 1], gradient[i, 2] = COULOMB * gx, COULOMB * gy, COULOMB * gz


@loop
def _gradients(points, sites, charges, box, is_periodic, terms, gradient, first, last):
    limit = terms[0] * terms[0]
    for j in range(first, last):
        gx = gy = gz = 0.0
        for i in range(len(points)):
            x, y, z, squared = _between(sites, j, points, i, box, is_periodic)
            if squared >= limit:
                continue
            _, slope = _energy(squared, terms)
            slope *= charges[i]
            gx += slope * x
            gy += slope * y
            gz += slope * z
        gradient[j, 0], gradient[j, 1], gradient[j, 2] = COULOMB * gx, COULOMB * gy, COULOMB * gz
