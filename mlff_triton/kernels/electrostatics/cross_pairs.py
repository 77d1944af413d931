"""Coulomb sums over pairs of two sets of charges.

    V_i = C sum_j q_j E(r_ij)      r_ij < cutoff

for points i and charges j, with E of `PairTerms`. All distances are computed, in float64: fifty
points and 25,000 charges have a million, fewer than a neighbor list would pay for. A program owns
the values it writes, and sums in a fixed order. In a box, vectors are those between nearest images,
which are right up to half the box. Arguments and results are those of
`mlff_triton.kernels.electrostatics.reference.cross_pairs`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.electrostatics.arguments import constants
from mlff_triton.kernels.electrostatics.types import COULOMB, PairTerms
from mlff_triton.kernels.numerics.error_function import erfc

_COULOMB = tl.constexpr(COULOMB)
_TWO_OVER_ROOT_PI = tl.constexpr(1.1283791670955126)
_LANES = 128  # sites at a time
_SITES = 1024  # per program of potentials


@triton.jit
def _nearest(x, y, z, box_ptr, PERIODIC: tl.constexpr):
    """Return vectors between nearest images in a reduced box."""
    if PERIODIC:
        n = tl.floor(z / tl.load(box_ptr + 8) + 0.5)
        x -= n * tl.load(box_ptr + 6)
        y -= n * tl.load(box_ptr + 7)
        z -= n * tl.load(box_ptr + 8)
        n = tl.floor(y / tl.load(box_ptr + 4) + 0.5)
        x -= n * tl.load(box_ptr + 3)
        y -= n * tl.load(box_ptr + 4)
        x -= tl.floor(x / tl.load(box_ptr) + 0.5) * tl.load(box_ptr)
    return x, y, z


@triton.jit
def _complement(distance, inverse, splitting):
    """Return ``erfc(a r) / r``, and its derivative divided by ``r``."""
    value, decay = erfc(splitting * distance)
    value = value * inverse
    slope = -(value + _TWO_OVER_ROOT_PI * splitting * decay) * inverse * inverse
    return value, slope


@triton.jit
def _energy(x, y, z, live, terms_ptr, EWALD: tl.constexpr, DAMPED: tl.constexpr):
    """Return energies of unit charges and their derivatives divided by the distance.

    They are zero beyond the cutoff.
    """
    cutoff = tl.load(terms_ptr)
    squared = x * x + y * y + z * z
    near = live & ((squared >= cutoff * cutoff) == 0)  # NaN stays
    squared = tl.where(near, squared, 1.0)
    distance = tl.sqrt(squared)
    inverse = 1 / distance
    if EWALD:
        value, slope = _complement(distance, inverse, tl.load(terms_ptr + 1))
    else:
        value, slope = inverse, -inverse * inverse * inverse
    curvature = tl.load(terms_ptr + 2)
    value += curvature * squared - tl.load(terms_ptr + 3)
    slope += 2 * curvature
    if DAMPED:
        lost, slope_of_lost = _complement(distance, inverse, 1 / tl.load(terms_ptr + 4))
        value -= lost
        slope -= slope_of_lost
    return tl.where(near, value, 0.0), tl.where(near, slope, 0.0)


@triton.jit
def _potentials_kernel(
    points_ptr,
    sites_ptr,
    charges_ptr,
    box_ptr,
    terms_ptr,
    sums_ptr,
    n_sites,
    PERIODIC: tl.constexpr,
    EWALD: tl.constexpr,
    DAMPED: tl.constexpr,
    LANES: tl.constexpr,
    SITES: tl.constexpr,
):
    """Sum over some sites for each point. Grid: (points, chunks of SITES sites).

    Reads ``points[M, 3]``, ``sites[S, 3]``, ``charges[S]``, ``box[3, 3]`` and ``terms[5]`` of
    `PairTerms`. Writes ``sums[chunks, M, 4]``: potentials and their gradients.
    """
    point, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    n_points = tl.num_programs(0)
    px = tl.load(points_ptr + 3 * point)
    py = tl.load(points_ptr + 3 * point + 1)
    pz = tl.load(points_ptr + 3 * point + 2)
    potential = tl.zeros([LANES], tl.float64)
    gx, gy, gz = potential, potential, potential
    for start in range(0, SITES, LANES):
        site = chunk * SITES + start + tl.arange(0, LANES)
        live = site < n_sites
        x = px - tl.load(sites_ptr + 3 * site, live, other=0.0)
        y = py - tl.load(sites_ptr + 3 * site + 1, live, other=0.0)
        z = pz - tl.load(sites_ptr + 3 * site + 2, live, other=0.0)
        x, y, z = _nearest(x, y, z, box_ptr, PERIODIC)
        value, slope = _energy(x, y, z, live, terms_ptr, EWALD, DAMPED)
        charge = _COULOMB * tl.load(charges_ptr + site, live, other=0.0)
        slope *= charge
        potential += value * charge
        gx += slope * x
        gy += slope * y
        gz += slope * z
    sums_ptr += 4 * (chunk * n_points + point)
    tl.store(sums_ptr, tl.sum(potential))
    tl.store(sums_ptr + 1, tl.sum(gx))
    tl.store(sums_ptr + 2, tl.sum(gy))
    tl.store(sums_ptr + 3, tl.sum(gz))


@triton.jit
def _gradients_kernel(
    points_ptr,
    sites_ptr,
    charges_ptr,
    box_ptr,
    terms_ptr,
    gradient_ptr,
    n_points,
    n_sites,
    PERIODIC: tl.constexpr,
    EWALD: tl.constexpr,
    DAMPED: tl.constexpr,
    LANES: tl.constexpr,
):
    """Sum over all points for each site. Grid: one program per LANES sites.

    Reads the same as `_potentials_kernel`, but ``charges[M]`` of points. Writes
    ``gradient[S, 3]``.
    """
    site = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    live = site < n_sites
    sx = tl.load(sites_ptr + 3 * site, live, other=0.0)
    sy = tl.load(sites_ptr + 3 * site + 1, live, other=0.0)
    sz = tl.load(sites_ptr + 3 * site + 2, live, other=0.0)
    gx = tl.zeros([LANES], tl.float64)
    gy, gz = gx, gx
    for point in range(n_points):
        x = sx - tl.load(points_ptr + 3 * point)
        y = sy - tl.load(points_ptr + 3 * point + 1)
        z = sz - tl.load(points_ptr + 3 * point + 2)
        x, y, z = _nearest(x, y, z, box_ptr, PERIODIC)
        _, slope = _energy(x, y, z, live, terms_ptr, EWALD, DAMPED)
        slope *= _COULOMB * tl.load(charges_ptr + point)
        gx += slope * x
        gy += slope * y
        gz += slope * z
    tl.store(gradient_ptr + 3 * site, gx, live)
    tl.store(gradient_ptr + 3 * site + 1, gy, live)
    tl.store(gradient_ptr + 3 * site + 2, gz, live)


def potentials_at(
    points: Tensor, sites: Tensor, charges: Tensor, box: Tensor | None, terms: PairTerms
) -> tuple[Tensor, Tensor]:
    """Compute the potential of charges at points, and its gradient, reproducibly to the bit.

    Calls can be captured in a CUDA graph. Values are not checked; NaN in the input makes results
    NaN.
    """
    n_chunks = triton.cdiv(len(sites), _SITES)
    sums = points.new_empty(n_chunks, len(points), 4)
    if len(points) and len(sites):
        with torch.cuda.device_of(points):
            _potentials_kernel[(len(points), n_chunks)](
                points.contiguous(),
                sites.contiguous(),
                charges.contiguous(),
                *_box_and_terms(points, box, terms),
                sums,
                len(sites),
                **_kind(box, terms),
                LANES=_LANES,
                SITES=_SITES,
            )
    found = sums.sum(0)
    return found[:, 0], found[:, 1:]


def gradients_of(
    points: Tensor, charges: Tensor, sites: Tensor, box: Tensor | None, terms: PairTerms
) -> Tensor:
    """Compute the gradient of the potential that charges at points have at sites."""
    gradient = torch.empty_like(sites, memory_format=torch.contiguous_format)
    if len(sites):
        with torch.cuda.device_of(points):
            _gradients_kernel[(triton.cdiv(len(sites), _LANES),)](
                points.contiguous(),
                sites.contiguous(),
                charges.contiguous(),
                *_box_and_terms(points, box, terms),
                gradient,
                len(points),
                len(sites),
                **_kind(box, terms),
                LANES=_LANES,
            )
    return gradient


def _box_and_terms(points: Tensor, box: Tensor | None, terms: PairTerms) -> tuple[Tensor, Tensor]:
    """Return a box, or memory that is not read without one, and the terms as a tensor."""
    return points if box is None else box.contiguous(), constants(*terms, device=points.device)


def _kind(box: Tensor | None, terms: PairTerms) -> dict[str, bool]:
    """Return the constants that kernels are compiled for."""
    return {
        "PERIODIC": box is not None,
        "EWALD": terms.splitting > 0,
        "DAMPED": terms.damping > 0,
    }
