"""Potential of charges on a mesh, and at points between its points.

It is the field of one set of charges at another one, by the kernels of `charge_mesh` and
`mesh_ewald`, so that a mesh of few charges is gathered at many points and not spread from them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.kernels.electrostatics.arguments import system_pointers
from mlff_triton.kernels.electrostatics.charge_mesh import Places, gather, locate, spread
from mlff_triton.kernels.electrostatics.derivatives import COLUMNS
from mlff_triton.kernels.electrostatics.mesh_ewald import convolved
from mlff_triton.kernels.electrostatics.types import MeshPlaces, PMEParameters


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

    Raises
    ------
    InputError
        If the mesh has more than 2^31 points.
    """
    positions = positions.contiguous()
    system = torch.zeros(len(positions), dtype=torch.int32, device=positions.device)
    found = locate(positions, cell.contiguous(), system, parameters.mesh, torch.float64)
    others = positions, found.volume, system, system_pointers(system, 1)
    return MeshPlaces(found.base, found.fraction, found.planes, others)


def mesh_potential(
    charges: Tensor,
    places: MeshPlaces,
    cell: Tensor,  # noqa: ARG001 (whose planes the places have)
    parameters: PMEParameters,
) -> Tensor:
    """Compute the potential of charges [N], with their own, on a mesh [K0, K1, K2], V."""
    _, _, system, pointers = places.others
    found, mesh, order = _places(places), parameters.mesh, parameters.order
    charged = spread(charges.contiguous(), system, pointers, found, mesh, order)
    return convolved(charged, found, parameters.splitting, order)[0][0]


def mesh_values(
    mesh: Tensor, places: MeshPlaces, parameters: PMEParameters
) -> tuple[Tensor, Tensor]:
    """Interpolate a potential on a mesh: values [N] in V, and gradients [N, 3] in V/Å."""
    positions, _, system, _ = places.others
    values, gradients = positions.new_empty(len(positions)), torch.empty_like(positions)
    sums = positions.new_empty(len(positions), COLUMNS)
    atoms = torch.ones_like(values), positions, system, _places(places)
    gather(mesh[None], *atoms, 0.0, parameters.order, (values, gradients, sums))
    return values, gradients


def _places(places: MeshPlaces) -> Places:
    return Places(places.planes, places.others[1], places.base, places.fraction)
