"""Calls of operators of electrostatics, to compile the kernels that they launch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from mlff_triton.kernels.electrostatics.charge_channels import channel_sums
from mlff_triton.kernels.electrostatics.pme_energy import pme_energy
from mlff_triton.kernels.electrostatics.types import ORDERS, PMEParameters

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


def electrostatic_calls(dtype: torch.dtype) -> dict[str, Callable[[], object]]:
    """Energies with splines of all orders, and of several charges per atom, by name."""
    energies = {
        f"pme_energy, order {order}, {dtype}, wide: {wide}": partial(
            electrostatic_energy, order, dtype, wide
        )
        for order, wide in [(5, True), *((order, False) for order in ORDERS)]
    }
    return {**energies, f"channel_sums, {dtype}": partial(several_charges, dtype)}
