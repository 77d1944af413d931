"""Meshes for several charges per atom, in plain PyTorch.

Atoms lie at the same places for all their charges, so splines are computed once. Formulas are those
of `mlff_triton.kernels.electrostatics.mesh_ewald`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mlff_triton.kernels.electrostatics.reference.mesh_ewald import influence
from mlff_triton.kernels.electrostatics.reference.slab import Moments, slab_sums
from mlff_triton.kernels.electrostatics.reference.splines import spline_slopes, spline_weights
from mlff_triton.kernels.electrostatics.reference.systems import inverse, sum_systems
from mlff_triton.kernels.electrostatics.types import COULOMB, ChannelSums, PMEParameters
from mlff_triton.kernels.types.charges import SumParts

ATOMS = 4096
"""Atoms whose splines are kept at a time, of 125 points and about five numbers each."""


def channel_potentials(
    charges: Tensor, positions: Tensor, cell: Tensor, system: Tensor, parameters: PMEParameters
) -> Tensor:
    """Compute the potential of each kind of charge at the atoms, without their own.

    It can be differentiated twice by all arguments.

    Parameters
    ----------
    charges : [N, C]
        Elementary charges. All C kinds are independent of one another.
    positions : float64 [N, 3]
        Å.
    cell : float64 [B, 3, 3]
        Lattice vectors as rows, Å.
    system : int64 [N]
        System of each atom.
    parameters : PMEParameters
        Splitting, mesh, order, and the direction in which systems are slabs.

    Returns
    -------
    [N, C]
        V. Half the product with the charges is the energy.
    """
    base, fraction = _places(positions, cell, system, parameters)
    points = _points(base, system, parameters)
    weights = _product(spline_weights(fraction.to(charges.dtype), parameters.order).unbind(1))
    mesh = _empty_mesh(charges, cell, parameters)
    mesh = mesh.index_add(
        0, points.flatten(), (charges[:, None] * weights[..., None]).flatten(0, 1)
    )
    spectrum = _transform(mesh, len(cell), parameters)
    factors = influence(cell, parameters).to(charges.dtype)
    mesh = _transform_back(spectrum * factors[..., None], parameters)
    potential = (mesh[points] * weights[..., None]).sum(1)
    potential = potential - _self_potential(parameters) * charges
    if parameters.slab is None:
        return potential
    given = charges.double(), positions, cell, system, parameters.slab
    moments = Moments.of(*given, lambda rows: sum_systems(rows, system, len(cell)))
    return potential + moments.potentials(system).to(charges.dtype)


def channel_sums(
    charges: Tensor,
    weights: Tensor,
    positions: Tensor,
    cell: Tensor,
    system: Tensor,
    parameters: PMEParameters,
    sum_parts: SumParts | None = None,
) -> ChannelSums:
    """Compute `mlff_triton.kernels.electrostatics.charge_channels.channel_sums` in float64.

    On a CPU, bits do not depend on the number of threads.
    """
    dtype, system = charges.dtype, system.long()
    charges, weights = charges.double(), weights.double()
    base, fraction = _places(positions, cell, system, parameters)
    some = torch.arange(len(charges), device=charges.device).split(ATOMS)
    mesh = _empty_mesh(charges, cell, parameters)
    for i in some:
        values = _product(spline_weights(fraction[i], parameters.order).unbind(1))
        points = _points(base[i], system[i], parameters)
        mesh.index_add_(0, points.flatten(), (charges[i, None] * values[..., None]).flatten(0, 1))
    if sum_parts is not None:
        mesh = sum_parts(mesh)
    spectrum = _transform(mesh, len(cell), parameters)
    virial = _virials(spectrum, weights, cell, parameters)
    mesh = _transform_back(spectrum * influence(cell, parameters)[..., None], parameters)

    potential, gradient = torch.empty_like(charges), torch.empty_like(positions)
    planes = inverse(cell) * torch.tensor(parameters.mesh, dtype=cell.dtype, device=cell.device)
    for i in some:
        lines = spline_weights(fraction[i], parameters.order).unbind(1)
        slopes = spline_slopes(fraction[i], parameters.order).unbind(1)
        found = mesh[_points(base[i], system[i], parameters)]
        potential[i] = (found * _product(lines)[..., None]).sum(1)
        of_points = (found * (charges[i] * weights)[:, None]).sum(2)
        along = torch.stack(
            [
                (of_points * _product([*lines[:d], slopes[d], *lines[d + 1 :]])).sum(1)
                for d in range(3)
            ],
            dim=1,
        )
        gradient[i] = (planes[system[i]] @ along[..., None])[..., 0]
    potential -= _self_potential(parameters) * charges
    sums = ChannelSums(potential, gradient, virial)
    if parameters.slab is not None:
        given = charges, weights, positions, cell, system, parameters.slab

        def total(rows: Tensor) -> Tensor:
            sums = sum_systems(rows, system, len(cell))
            return sums if sum_parts is None else sum_parts(sums)

        sums = sums.plus(slab_sums(*given, total))
    return sums._replace(potential=sums.potential.to(dtype))


def _virials(spectrum: Tensor, weights: Tensor, cell: Tensor, parameters: PMEParameters) -> Tensor:
    """Return the derivatives by strain of the energies of spectra [B, K0, K1, K2 / 2 + 1, C]."""
    mesh, half = parameters.mesh, parameters.mesh[2] // 2 + 1
    waves = [torch.fft.fftfreq(n, 1 / n, dtype=cell.dtype, device=cell.device) for n in mesh]
    grid = torch.stack(torch.meshgrid(waves[0], waves[1], waves[2][:half].abs(), indexing="ij"))
    k = torch.einsum("bcd,dxyz->bxyzc", inverse(cell), grid)
    squared = (k**2).sum(-1)
    is_zero = grid.abs().sum(0) == 0
    twice = torch.where((grid[2] == 0) | (2 * grid[2] == mesh[2]), 0.5, 1.0)
    power = ((spectrum.real**2 + spectrum.imag**2) * weights).sum(-1)
    energies = twice * influence(cell, parameters) * power
    width = (math.pi / parameters.splitting) ** 2
    safe = torch.where(is_zero, 1.0, squared)
    strained = torch.where(is_zero, 0.0, 2 * energies * (1 / safe + width))
    virial = torch.einsum("bxyz,bxyzc,bxyzd->bcd", strained, k, k)
    own = torch.eye(3, dtype=cell.dtype, device=cell.device)
    return virial - energies.sum((1, 2, 3))[:, None, None] * own


def _places(
    positions: Tensor, cell: Tensor, system: Tensor, parameters: PMEParameters
) -> tuple[Tensor, Tensor]:
    """Return the mesh point below each atom, float64 [N, 3], and the distance from it."""
    fractions = (positions[:, None] @ inverse(cell)[system])[:, 0]
    scaled = fractions * torch.tensor(parameters.mesh, dtype=cell.dtype, device=cell.device)
    base = scaled.detach().floor()
    return base, scaled - base


def _points(base: Tensor, system: Tensor, parameters: PMEParameters) -> Tensor:
    """Return the mesh points of each atom, int64 [N, order^3]."""
    mesh, steps = parameters.mesh, torch.arange(parameters.order, device=base.device)
    below = base.nan_to_num(0, 0, 0).long().unbind(1)
    x, y, z = ((b[:, None] - steps) % n for b, n in zip(below, mesh, strict=True))
    points = (system[:, None] * mesh[0] + x)[:, :, None] * mesh[1] + y[:, None]
    return (points[..., None] * mesh[2] + z[:, None, None]).flatten(1)


def _product(lines: tuple[Tensor, ...] | list[Tensor]) -> Tensor:
    """Multiply values along three directions, [N, order] each: [N, order^3]."""
    x, y, z = lines
    return (x[:, :, None, None] * y[:, None, :, None] * z[:, None, None]).flatten(1)


def _empty_mesh(charges: Tensor, cell: Tensor, parameters: PMEParameters) -> Tensor:
    """Return zeros [B K0 K1 K2, C]."""
    return charges.new_zeros(len(cell) * math.prod(parameters.mesh), charges.shape[1])


def _transform(mesh: Tensor, n_systems: int, parameters: PMEParameters) -> Tensor:
    """Transform meshes [B K0 K1 K2, C]: [B, K0, K1, K2 / 2 + 1, C]."""
    found: Tensor = torch.fft.rfftn(mesh.view(n_systems, *parameters.mesh, -1), dim=(1, 2, 3))
    return found


def _transform_back(spectrum: Tensor, parameters: PMEParameters) -> Tensor:
    """Invert `_transform`, without a factor."""
    mesh: Tensor = torch.fft.irfftn(spectrum, s=parameters.mesh, dim=(1, 2, 3), norm="forward")
    return mesh.flatten(0, 3)


def _self_potential(parameters: PMEParameters) -> float:
    """Return the potential of a unit charge at itself, V."""
    return 2 * COULOMB * parameters.splitting / math.sqrt(math.pi)
