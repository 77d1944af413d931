"""Coulomb sums over pairs of two sets of charges, in plain PyTorch.

    V_i = C sum_j q_j E(r_ij)      r_ij < cutoff

for points i and charges j, with E of `PairTerms`. In a box, vectors are those between nearest
images, which are right up to half the box.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mlff_triton.kernels.electrostatics.types import COULOMB, PairTerms

CHUNK = 1 << 21
"""Pairs whose distances are in memory at the same time."""


def potentials_at(
    points: Tensor, sites: Tensor, charges: Tensor, box: Tensor | None, terms: PairTerms
) -> tuple[Tensor, Tensor]:
    """Compute the potential of charges at points, and its gradient.

    Parameters
    ----------
    points : float64 [M, 3]
        Å.
    sites : float64 [S, 3]
        Positions of the charges, Å.
    charges : float64 [S]
        Elementary charges.
    box : float64 [3, 3], optional
        Reduced box vectors of OpenMM as rows, Å: each later one leans on the earlier ones.
    terms : PairTerms
        Energy of a pair.

    Returns
    -------
    float64 [M]
        V.
    float64 [M, 3]
        Its derivatives by the points, V/Å.
    """
    potential, gradient = torch.zeros_like(points[:, 0]), torch.zeros_like(points)
    for some in torch.arange(len(points), device=points.device).split(_rows(sites)):
        vectors = nearest_images(points[some, None] - sites, box)
        values, slopes = _within(vectors, terms)
        potential[some] = COULOMB * (values @ charges)
        gradient[some] = COULOMB * ((slopes * charges)[:, None] @ vectors)[:, 0]
    return potential, gradient


def gradients_of(
    points: Tensor,
    charges: Tensor,
    sites: Tensor,
    box: Tensor | None,
    terms: PairTerms,
) -> Tensor:
    """Compute the gradient of the potential that charges at points have at sites.

    Parameters
    ----------
    points, sites, box, terms
        Same as for `potentials_at`.
    charges : float64 [M]
        Elementary charges at the points.

    Returns
    -------
    float64 [S, 3]
        V/Å.
    """
    gradient = torch.zeros_like(sites)
    for some in torch.arange(len(points), device=points.device).split(_rows(sites)):
        vectors = nearest_images(points[some, None] - sites, box)
        _, slopes = _within(vectors, terms)
        weighted = -COULOMB * slopes * charges[some, None]
        gradient += (weighted[:, :, None] * vectors).sum(0)
    return gradient


def nearest_images(vectors: Tensor, box: Tensor | None) -> Tensor:
    """Return vectors [..., 3] between nearest images, which are right up to half the box."""
    if box is None:
        return vectors
    for k in (2, 1, 0):
        vectors = vectors - torch.round(vectors[..., k : k + 1] / box[k, k]) * box[k]
    return vectors


def pair_energy(distance: Tensor, terms: PairTerms) -> tuple[Tensor, Tensor]:
    """Return the energy of pairs of unit charges without Coulomb's constant, and its slope.

    The slope is divided by the distance.
    """
    if terms.splitting:
        value, slope = complement(distance, terms.splitting)
    else:
        value, slope = 1 / distance, -1 / distance**3
    value = value + terms.curvature * distance**2 - terms.shift
    slope = slope + 2 * terms.curvature
    if terms.damping:
        lost, slope_of_lost = complement(distance, 1 / terms.damping)
        value, slope = value - lost, slope - slope_of_lost
    return value, slope


def complement(distance: Tensor, splitting: float) -> tuple[Tensor, Tensor]:
    """Return ``erfc(a r) / r``, and its derivative divided by ``r``."""
    value = torch.erfc(splitting * distance) / distance
    gaussian = 2 * splitting / math.sqrt(math.pi) * torch.exp(-((splitting * distance) ** 2))
    return value, -(value + gaussian) / distance**2


def _within(vectors: Tensor, terms: PairTerms) -> tuple[Tensor, Tensor]:
    """Return the energies of pairs and their slopes, which are zero beyond the cutoff."""
    squared = (vectors**2).sum(2)
    outside = squared >= terms.cutoff**2  # NaN is not
    values, slopes = pair_energy(torch.where(outside, 1.0, squared).sqrt(), terms)
    return torch.where(outside, 0.0, values), torch.where(outside, 0.0, slopes)


def _rows(sites: Tensor) -> int:
    return max(1, CHUNK // max(len(sites), 1))
