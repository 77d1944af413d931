"""Calls of operators of electrostatics, to compile the kernels that they launch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from mlff_triton.kernels.electrostatics.charge_channels import channel_sums
from mlff_triton.kernels.electrostatics.cross_pairs import gradients_of, potentials_at
from mlff_triton.kernels.electrostatics.mesh_field import (
    mesh_places,
    mesh_potential,
    mesh_values,
)
from mlff_triton.kernels.electrostatics.pme_energy import pme_energy
from mlff_triton.kernels.electrostatics.types import ORDERS, PairTerms, PMEParameters

N, E = 40, 80


def electrostatic_energy(order: int, dtype: torch.dtype, wide: bool) -> object:
    """Compute the energy by `pme_energy`, hence by `ewald_pairs` and `mesh_ewald`."""
    integers = torch.int64 if wide else torch.int32
    charges, positions = torch.ones(N, dtype=dtype), torch.ones(N, 3, dtype=torch.float64)
    batch, row_ptr = torch.zeros(N, dtype=integers), torch.arange(0, E + 1, 2, dtype=integers)
    senders = torch.zeros(E, dtype=integers)
    shifts = torch.zeros(E, 3, dtype=torch.int64 if wide else torch.int8)
    parameters = PMEParameters(0.4, 5.0, (8, 12, 16), order, slab=2)
    cell = 10 * torch.eye(3, dtype=torch.float64 if wide else dtype)[None]
    atoms = charges, positions.to(cell.dtype), cell, batch
    return pme_energy(*atoms, row_ptr, senders, shifts, parameters, check=False)


def several_charges(dtype: torch.dtype) -> object:
    """Compute meshes of several charges per atom, as the engine does."""
    charges, weights = torch.ones(N, 3, dtype=dtype), torch.ones(3).double()
    atoms = torch.ones(N, 3).double(), 10 * torch.eye(3)[None].double()
    parameters = PMEParameters(0.4, 5.0, (8, 12, 16))
    return channel_sums(charges, weights, *atoms, torch.zeros(N).int(), parameters)


def field_of_charges(order: int, periodic: bool) -> object:
    """Compute the field of charges at points, by `cross_pairs` and `mesh_field` in float64."""
    points, charges, cell = torch.ones(N, 3).double(), torch.ones(N).double(), 10 * torch.eye(3)
    terms = PairTerms(5.0, 0.4, 0.0, 0.0, 1.0) if periodic else PairTerms(9.0, 0.0, 0.1, 0.1)
    box = cell.double() if periodic else None
    potentials_at(points, points, charges, box, terms)
    gradients_of(points, charges, points, box, terms)
    parameters = PMEParameters(0.4, 5.0, (8, 12, 16), order)
    places = mesh_places(points, cell.double()[None], parameters)
    mesh = mesh_potential(charges, places, cell.double()[None], parameters)
    return mesh_values(mesh, places, parameters)


def electrostatic_calls(dtype: torch.dtype) -> dict[str, Callable[[], object]]:
    """Energies with splines of all orders, and of several charges per atom, by name."""
    energies = {
        f"pme_energy, order {order}, {dtype}, wide: {wide}": partial(
            electrostatic_energy, order, dtype, wide
        )
        for order, wide in [(5, True), *((order, False) for order in ORDERS)]
    }
    fields = {
        f"field of charges, order {order}, periodic: {periodic}": partial(
            field_of_charges, order, periodic
        )
        for order, periodic in ((5, True), (4, False))
    }
    return {**energies, **fields, f"channel_sums, {dtype}": partial(several_charges, dtype)}
