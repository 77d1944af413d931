"""Reciprocal part of smooth particle-mesh Ewald, in plain PyTorch."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mlff_triton.kernels.electrostatics.moduli import moduli
from mlff_triton.kernels.electrostatics.reference.splines import spline_weights
from mlff_triton.kernels.electrostatics.reference.systems import (
    inverse,
    sum_systems,
    system_of,
    volumes,
)
from mlff_triton.kernels.electrostatics.types import COULOMB, Electrostatics, PMEParameters


def mesh_ewald(
    charges: Tensor,
    positions: Tensor,
    cell: Tensor,
    batch: Tensor | None,
    parameters: PMEParameters,
) -> Electrostatics:
    """Compute `mlff_triton.kernels.electrostatics.mesh_ewald.mesh_ewald`."""
    system = system_of(batch, charges, cell)
    points, weights = _stencils(positions, cell, system, parameters, charges.dtype)
    n_points = math.prod(parameters.mesh)
    mesh = charges.new_zeros(len(cell) * n_points)
    mesh = mesh.index_add(0, points.flatten(), (charges[:, None] * weights).flatten())

    spectrum = torch.fft.rfftn(mesh.view(len(cell), *parameters.mesh), dim=(1, 2, 3))
    spectrum = spectrum * influence(cell, parameters).to(charges.dtype)
    mesh = torch.fft.irfftn(spectrum, s=parameters.mesh, dim=(1, 2, 3), norm="forward")

    potential = (mesh.flatten()[points] * weights).sum(1)
    potential = potential - 2 * COULOMB * parameters.splitting / math.sqrt(math.pi) * charges
    energies = 0.5 * charges.double() * potential.double()
    return Electrostatics(sum_systems(energies, system, len(cell)), potential)


def influence(cell: Tensor, parameters: PMEParameters) -> Tensor:
    """Return the influence function in eV, float64 [B, K_0, K_1, K_2 / 2 + 1].

    It is ``C exp(-(pi k / alpha)^2) / (pi V k^2)`` over the squared moduli of the splines, where k
    is the wave vector without the factor 2 pi. At zero, it is the neutralizing background,
    ``-C pi / (alpha^2 V)``.
    """
    splitting, mesh = parameters.splitting, parameters.mesh
    cell = cell.double()
    factors = [moduli(n, parameters.order, cell.device) for n in mesh]
    waves = [torch.fft.fftfreq(n, 1 / n, dtype=torch.float64, device=cell.device) for n in mesh]
    half = mesh[2] // 2 + 1
    grid = torch.meshgrid(waves[0], waves[1], waves[2][:half], indexing="ij")
    k = torch.einsum("bcd,dxyz->bxyzc", inverse(cell), torch.stack(grid))
    squared = (k**2).sum(-1)
    volume = volumes(cell)[:, None, None, None]
    is_zero = torch.stack(grid).abs().sum(0) == 0
    squared = torch.where(is_zero, 1.0, squared)
    damped = torch.exp(-((math.pi / splitting) ** 2) * squared) / (math.pi * squared)
    factor = torch.where(is_zero, -math.pi / splitting**2, damped)
    product = factors[0][:, None, None] * factors[1][:, None] * factors[2][:half]
    return COULOMB * product * factor / volume


def _stencils(
    positions: Tensor, cell: Tensor, system: Tensor, parameters: PMEParameters, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return the mesh points of each atom, int64 [N, order^3], and their weights."""
    order, mesh = parameters.order, parameters.mesh
    fractions = (positions.double()[:, None] @ inverse(cell.double())[system])[:, 0].unbind(1)
    scaled = torch.stack([u * n for u, n in zip(fractions, mesh, strict=True)], dim=1)
    base = scaled.detach().floor()
    weights = spline_weights((scaled - base).to(dtype), order)  # [N, 3, order]
    steps = torch.arange(order, device=cell.device)
    below = base.nan_to_num(0, 0, 0).long().unbind(1)
    x, y, z = ((b[:, None] - steps) % n for b, n in zip(below, mesh, strict=True))
    points = (system[:, None] * mesh[0] + x)[:, :, None] * mesh[1] + y[:, None]
    points = points[..., None] * mesh[2] + z[:, None, None]
    wx, wy, wz = weights.unbind(1)
    product = wx[:, :, None, None] * wy[:, None, :, None] * wz[:, None, None]
    return points.flatten(1), product.flatten(1)
