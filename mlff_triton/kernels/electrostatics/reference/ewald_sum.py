"""Ewald sums without a mesh or a neighbor list, in float64: the truth of particle-mesh Ewald.

    E = C / 2 sum'_{ij,S} q_i q_j erfc(alpha r) / r                  r = |r_i - r_j - S cell|
      + C / (2 pi V) sum_{k != 0} exp(-(pi k / alpha)^2) / k^2 |sum_i q_i exp(2 pi i k r_i)|^2
      - C alpha / sqrt(pi) sum_i q_i^2 - C pi / (2 alpha^2 V) Q^2

C is Coulomb's constant, and the last term is that of a background that neutralizes the charge Q.
See A. Y. Toukmaji and J. A. Board, Comput. Phys. Commun. 95, 73 (1996),
https://doi.org/10.1016/0010-4655(96)00016-1.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.electrostatics.reference.slab import slab_correction
from mlff_triton.kernels.electrostatics.reference.systems import heights, system_of, volumes
from mlff_triton.kernels.electrostatics.types import COULOMB, Electrostatics
from mlff_triton.kernels.electrostatics.validity import check_systems

CHUNK = 1 << 22
"""Elements of a chunk of waves or images and atoms, which limits memory."""


def ewald_sum(
    charges: Tensor,
    positions: Tensor,
    cell: Tensor,
    batch: Tensor | None = None,
    *,
    splitting: float | None = None,
    error: float = 1e-12,
    slab: int | None = None,
) -> Electrostatics:
    """Compute the electrostatic energy of periodic systems, exactly and slowly.

    Parameters
    ----------
    charges : [N]
        Partial charges, elementary charges.
    positions : [N, 3]
        Å.
    cell : [B, 3, 3]
        Lattice vectors as rows, Å.
    batch : int64 [N], optional
        System of each atom, ascending; None for one system.
    splitting : float, optional
        Parameter alpha in 1/Å, which does not change the result. By default, it balances both sums.
    error : float
        Relative size of the terms at which both sums end.
    slab : {0, 1, 2}, optional
        Lattice vector along which the systems are not periodic, as in `PMEParameters`.

    Returns
    -------
    Electrostatics
        Both in float64, and differentiable to any order.

    Raises
    ------
    InputError
        If the splitting is not positive, a value is not finite, a cell has no volume, or systems do
        not ascend.

    Examples
    --------
    Rock salt, whose Madelung constant is twice 1.747565 per conventional cell and ion pair:

    >>> sites = torch.cartesian_prod(*[torch.arange(2.0)] * 3)
    >>> signs = 1 - 2 * (sites.sum(1) % 2)
    >>> energy = ewald_sum(signs, sites, 2 * torch.eye(3)[None]).energy
    >>> round(float(energy) / -COULOMB / 4, 6)
    1.747565
    """
    if splitting is not None and not 0 < splitting < math.inf:
        raise InputError(f"splitting must be positive and finite, not {splitting}")
    charges, positions, cell = charges.double(), positions.double(), cell.double()
    system = system_of(batch, charges, cell)
    check_systems(charges.detach(), positions.detach(), cell.detach(), system)
    sizes = system.bincount(minlength=len(cell)).tolist()
    found = [
        _one_system(q, r, c, splitting, error, slab)
        for q, r, c in zip(charges.split(sizes), positions.split(sizes), cell, strict=True)
    ]
    return Electrostatics(torch.stack([e for e, _ in found]), torch.cat([p for _, p in found]))


def _one_system(
    charges: Tensor,
    positions: Tensor,
    cell: Tensor,
    splitting: float | None,
    error: float,
    slab: int | None,
) -> tuple[Tensor, Tensor]:
    """Return the energy of a system and the potential [N] of its atoms."""
    volume = volumes(cell[None])[0]
    if splitting is None:
        splitting = math.sqrt(math.pi) * (max(len(charges), 1) / float(volume.detach()) ** 2) ** (
            1 / 6
        )
    reach = math.sqrt(-math.log(error))
    potential = _near(charges, positions, cell, splitting, reach / splitting)
    potential = potential + _far(charges, positions, cell, splitting, reach * splitting / math.pi)
    potential = potential - 2 * splitting / math.sqrt(math.pi) * charges
    potential = potential - math.pi / (splitting**2 * volume) * charges.sum()
    potential = COULOMB * potential
    energy = 0.5 * (charges * potential).sum()
    if slab is not None:
        system = torch.zeros(len(charges), dtype=torch.int64, device=charges.device)
        correction = slab_correction(
            charges, positions, cell[None], system, slab, lambda rows: rows.sum(0, keepdim=True)
        )
        return energy + correction.energy[0], potential + correction.potential
    return energy, potential


def _near(
    charges: Tensor, positions: Tensor, cell: Tensor, splitting: float, cutoff: float
) -> Tensor:
    """Return the sums in real space over all images within a cutoff, without Coulomb's constant."""
    i, j, shift = _pairs(positions.detach(), cell.detach(), cutoff)
    distance = torch.linalg.vector_norm(positions[i] - positions[j] - shift @ cell, dim=1)
    return torch.zeros_like(charges).index_add(
        0, i, torch.erfc(splitting * distance) / distance * charges[j]
    )


def _pairs(positions: Tensor, cell: Tensor, cutoff: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return receivers, senders and translations, float64 [E, 3], of all pairs within a cutoff."""
    cells = (positions @ torch.linalg.inv(cell)).floor()
    points, n_atoms = positions - cells @ cell, len(positions)
    spans = (cutoff / heights(cell[None])[0]).floor().long() + 1
    ranges = [torch.arange(-n, n + 1, device=cell.device) for n in spans.tolist()]
    found = []
    images = torch.cartesian_prod(*ranges).double()
    for part in images.split(max(1, CHUNK // max(n_atoms, 1) ** 2)):
        for some in torch.arange(n_atoms, device=cell.device).split(max(1, CHUNK // len(points))):
            delta = points[some, None] - points - (part @ cell)[:, None, None]
            squared = (delta**2).sum(-1)
            image, i, j = (squared < cutoff**2).nonzero(as_tuple=True)
            shift, i = part[image], some[i]
            other = (i != j) | (shift != 0).any(1)
            found.append((i[other], j[other], shift[other]))
    i, j, shift = (torch.cat(part) for part in zip(*found, strict=True))
    return i, j, shift + cells[i] - cells[j]


def _far(
    charges: Tensor, positions: Tensor, cell: Tensor, splitting: float, cutoff: float
) -> Tensor:
    """Return the sums over waves up to a cutoff in 1/Å, without Coulomb's constant."""
    inverse = torch.linalg.inv(cell)
    spans = (cutoff * torch.linalg.vector_norm(cell.detach(), dim=1)).floor().long().tolist()
    ranges = [torch.arange(-n, n + 1, device=cell.device) for n in spans]
    waves = torch.cartesian_prod(*ranges).double()
    waves = waves[len(waves) // 2 + 1 :]  # one of each pair of opposites, without zero
    waves = waves[torch.linalg.vector_norm(waves @ inverse.detach().T, dim=1) < cutoff]
    potential = torch.zeros_like(charges)
    for some in waves.split(max(1, CHUNK // max(len(charges), 1))):
        k = some @ inverse.T
        squared = (k**2).sum(1)
        phase = 2 * math.pi * positions @ k.T
        cosine, sine = phase.cos(), phase.sin()
        factor = 2 * torch.exp(-((math.pi / splitting) ** 2) * squared) / (math.pi * squared)
        potential = potential + cosine @ (factor * (charges @ cosine))
        potential = potential + sine @ (factor * (charges @ sine))
    return potential / volumes(cell[None])[0]
