"""Checks of the arguments of electrostatic operators, without waiting for a GPU."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.common.checks import FLOATS, check_device, check_integers, check_shape


def check_atoms(charges: Tensor, positions: Tensor, cell: Tensor, batch: Tensor | None) -> None:
    """Check that shapes, dtypes and devices of atoms and cells fit together.

    Raises
    ------
    InputError
        If they do not.
    BackendError
        If the tensors are not on a GPU.
    """
    for name, tensor in (("charges", charges), ("positions", positions), ("cell", cell)):
        if tensor.dtype not in FLOATS:
            raise InputError(f"{name} is {tensor.dtype}: use float32 or float64")
    check_shape("charges", charges, ("N",))
    check_shape("positions", positions, (len(charges), 3))
    check_shape("cell", cell, ("B", 3, 3))
    if batch is None:
        if len(cell) != 1:
            raise InputError(f"there are {len(cell)} cells, and no batch: give each atom's system")
        check_device(charges, positions, cell)
    else:
        check_integers(batch=batch)
        check_shape("batch", batch, (len(charges),))
        check_device(charges, positions, cell, batch)


def systems(charges: Tensor, batch: Tensor | None) -> Tensor:
    """Return the system of each atom, int [N]."""
    if batch is None:
        return torch.zeros(len(charges), dtype=torch.int32, device=charges.device)
    return batch.contiguous()


def system_pointers(system: Tensor, n_systems: int) -> Tensor:
    """Return the first atom of each system, int64 [B + 1], without waiting for a GPU."""
    numbers = torch.arange(n_systems + 1, dtype=system.dtype, device=system.device)
    return torch.searchsorted(system, numbers)


@lru_cache(maxsize=64)
def constants(*values: float, device: torch.device) -> Tensor:
    """Return numbers as a float64 tensor, for kernels whose scalar arguments are float32.

    They are copied to a GPU once, so that later calls can be captured in a CUDA graph.
    """
    return torch.tensor(values, dtype=torch.float64, device=device)
