"""Potential of charges on a mesh, and at points between its points, in plain PyTorch.

It is the field of one set of charges at another one, by the formulas of
`mlff_triton.kernels.electrostatics.mesh_ewald`. All is in float64 and in one box.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mlff_triton.kernels.electrostatics.reference.mesh_ewald import influence
from mlff_triton.kernels.electrostatics.reference.splines import spline_slopes, spline_weights
from mlff_triton.kernels.electrostatics.reference.systems import inverse
from mlff_triton.kernels.electrostatics.types import MeshPlaces, PMEParameters

ATOMS = 4096
"""Points whose splines are kept at a time, of 125 mesh points and about five numbers each."""


def mesh_places(positions: Tensor, cell: Tensor, parameters: PMEParameters) -> MeshPlaces:
    """Find positions on a mesh.

    Parameters
    ----------
    positions : float64 [N, 3]
        Å; anywhere.
    cell : float64 [1, 3, 3]
        Lattice vectors as rows, Å.
    parameters : PMEParameters
        Splitting, mesh and order.
    """
    planes = inverse(cell)
    size = torch.tensor(parameters.mesh, dtype=cell.dtype, device=cell.device)
    scaled = (positions @ planes[0]) * size
    base = scaled.floor()
    return MeshPlaces(base, scaled - base, planes)


def mesh_potential(
    charges: Tensor, places: MeshPlaces, cell: Tensor, parameters: PMEParameters
) -> Tensor:
    """Compute the potential of charges [N], with their own, on a mesh [K0, K1, K2], V."""
    mesh = charges.new_zeros(math.prod(parameters.mesh))
    for some in torch.arange(len(charges), device=charges.device).split(ATOMS):
        lines = spline_weights(places.fraction[some], parameters.order).unbind(1)
        weights = charges[some, None] * _product(*lines)
        mesh.index_add_(0, _points(places.base[some], parameters).flatten(), weights.flatten())
    return filtered(mesh.view(parameters.mesh), influence(cell, parameters)[0])


def filtered(mesh: Tensor, factors: Tensor) -> Tensor:
    """Multiply the transform of a mesh [K0, K1, K2] by factors [K0, K1, K2 / 2 + 1]."""
    spectrum = torch.fft.rfftn(mesh)
    potential: Tensor = torch.fft.irfftn(spectrum * factors, s=mesh.shape, norm="forward")
    return potential


def mesh_values(
    mesh: Tensor, places: MeshPlaces, parameters: PMEParameters
) -> tuple[Tensor, Tensor]:
    """Interpolate a potential on a mesh: values [N] in V, and gradients [N, 3] in V/Å."""
    base, order, flat = places.base, parameters.order, mesh.flatten()
    values = mesh.new_empty(len(base))
    gradients = mesh.new_empty(len(base), 3)
    size = torch.tensor(parameters.mesh, dtype=mesh.dtype, device=mesh.device)
    for some in torch.arange(len(base), device=mesh.device).split(ATOMS):
        lines = spline_weights(places.fraction[some], order).unbind(1)
        slopes = spline_slopes(places.fraction[some], order).unbind(1)
        found = flat[_points(base[some], parameters)]
        values[some] = (found * _product(*lines)).sum(1)
        along = [
            (found * _product(*lines[:d], slopes[d], *lines[d + 1 :])).sum(1) for d in range(3)
        ]
        gradients[some] = (torch.stack(along, dim=1) * size) @ places.planes[0].T
    return values, gradients


def _points(base: Tensor, parameters: PMEParameters) -> Tensor:
    """Return the mesh points of each position, int64 [N, order^3]."""
    mesh, steps = parameters.mesh, torch.arange(parameters.order, device=base.device)
    below = base.nan_to_num(0, 0, 0).long().unbind(1)
    x, y, z = ((b[:, None] - steps) % n for b, n in zip(below, mesh, strict=True))
    points = (x[:, :, None] * mesh[1] + y[:, None])[..., None] * mesh[2] + z[:, None, None]
    return points.flatten(1)


def _product(*lines: Tensor) -> Tensor:
    """Multiply values along three directions, [N, order] each: [N, order^3]."""
    x, y, z = lines
    return (x[:, :, None, None] * y[:, None, :, None] * z[:, None, None]).flatten(1)
