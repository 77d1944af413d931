"""Potential of charges on a mesh, and at points between its points.

Arguments and results are those of `mlff_triton.kernels.electrostatics.reference.mesh_field`.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from mlff_triton.kernels.common.cpu.compilation import allocating_loop, inlined, run
from mlff_triton.kernels.electrostatics.reference import mesh_field as reference
from mlff_triton.kernels.electrostatics.reference.mesh_ewald import influence
from mlff_triton.kernels.electrostatics.types import MeshPlaces, PMEParameters


def mesh_places(positions: Tensor, cell: Tensor, parameters: PMEParameters) -> MeshPlaces:
    """Find positions on a mesh, and an order in which neighbors follow each other.

    Mesh points of the next position are mostly in the cache then.
    """
    found = reference.mesh_places(positions, cell, parameters)
    x, y, z = found.base.nan_to_num(0, 0, 0).long().unbind(1)
    k0, k1, k2 = parameters.mesh
    return found._replace(others=(((x % k0 * k1 + y % k1) * k2 + z % k2).argsort(stable=True),))


def mesh_potential(
    charges: Tensor, places: MeshPlaces, cell: Tensor, parameters: PMEParameters
) -> Tensor:
    """Compute the potential of charges [N], with their own, on a mesh [K0, K1, K2], V."""
    mesh = charges.new_zeros(parameters.mesh)
    given = charges, places.base, places.fraction, *places.others, parameters.order, mesh
    run(_spread, len(charges), *given, in_order=True)  # as points belong to several charges
    return reference.filtered(mesh, _influence(tuple(cell.flatten().tolist()), parameters))


@lru_cache(maxsize=2)
def _influence(cell: tuple[float, ...], parameters: PMEParameters) -> Tensor:
    """Return the influence function of a cell, which changes less often than positions."""
    return influence(torch.tensor(cell, dtype=torch.float64).view(1, 3, 3), parameters)[0]


def mesh_values(
    mesh: Tensor, places: MeshPlaces, parameters: PMEParameters
) -> tuple[Tensor, Tensor]:
    """Interpolate a potential on a mesh: values [N] in V, and gradients [N, 3] in V/Å."""
    values, gradients = torch.empty_like(places.base[:, 0]), torch.empty_like(places.base)
    size = torch.tensor(parameters.mesh, dtype=mesh.dtype)
    planes = (places.planes[0] * size).contiguous()
    given = mesh, places.base, places.fraction, *places.others, planes, parameters.order
    run(_gather, len(values), *given, values, gradients)
    return values, gradients


@inlined
def _splines(fraction, order, lines):
    """Write the values of B-splines in each direction, ``lines[3, order]``."""
    for d in range(3):
        f = fraction[d]
        lines[d, 0], lines[d, 1] = f, 1.0 - f
        for n in range(3, order + 1):
            lines[d, n - 1] = 0.0
            for t in range(n - 1, 0, -1):
                lines[d, t] = ((f + t) * lines[d, t] + (n - t - f) * lines[d, t - 1]) / (n - 1)
            lines[d, 0] *= f / (n - 1)


@inlined
def _spline_slopes(fraction, order, slopes):
    """Write the derivatives of `_splines`."""
    _splines(fraction, order - 1, slopes)
    for d in range(3):
        slopes[d, order - 1] = -slopes[d, order - 2]
        for t in range(order - 2, 0, -1):
            slopes[d, t] -= slopes[d, t - 1]


@inlined
def _points(base, order, mesh, points):
    """Write the mesh points of a position in each direction, ``points[3, order]``."""
    for d in range(3):
        size = mesh.shape[d]
        below = base[d] % size
        point = int(below) if 0.0 <= below < size else 0  # NaN, whose weights are NaN, too
        for k in range(order):
            points[d, k] = point
            point = size - 1 if point == 0 else point - 1


@allocating_loop
def _spread(charges, base, fraction, rows, order, mesh, first, last):
    lines, points = np.empty((3, 8)), np.empty((3, 8), np.uint64)
    for row in range(first, last):
        a = rows[row]
        _splines(fraction[a], order, lines)
        _points(base[a], order, mesh, points)
        for i in range(order):
            for j in range(order):
                weight = charges[a] * lines[0, i] * lines[1, j]
                for k in range(order):
                    mesh[points[0, i], points[1, j], points[2, k]] += weight * lines[2, k]


@allocating_loop
def _gather(mesh, base, fraction, rows, planes, order, values, gradients, first, last):
    lines, slopes, points = np.empty((3, 8)), np.empty((3, 8)), np.empty((3, 8), np.uint64)
    for row in range(first, last):
        a = rows[row]
        _splines(fraction[a], order, lines)
        _spline_slopes(fraction[a], order, slopes)
        _points(base[a], order, mesh, points)
        value = along_x = along_y = along_z = 0.0
        for i in range(order):
            for j in range(order):
                line = slope = 0.0
                for k in range(order):
                    phi = mesh[points[0, i], points[1, j], points[2, k]]
                    line += lines[2, k] * phi
                    slope += slopes[2, k] * phi
                value += lines[0, i] * lines[1, j] * line
                along_x += slopes[0, i] * lines[1, j] * line
                along_y += lines[0, i] * slopes[1, j] * line
                along_z += lines[0, i] * lines[1, j] * slope
        values[a] = value
        for c in range(3):
            gradients[a, c] = (
                planes[c, 0] * along_x + planes[c, 1] * along_y + planes[c, 2] * along_z
            )
