"""Equilibration of partial charges.

Arguments and results are those of `mlff_triton.kernels.tensornet2.reference.equilibration`. Sums
over a system take its atoms in the user's order.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mlff_triton.kernels.common.cpu.compilation import loop, run
from mlff_triton.kernels.tensornet2.reference.equilibration import EPS
from mlff_triton.kernels.types.charges import SumParts


def equilibrate(
    predicted: Tensor,
    totals: Tensor,
    systems: Tensor,  # noqa: ARG001 (each system writes to its atoms)
    rank: Tensor,
    system_ptr: Tensor,
    charges: Tensor,
    floor: float = 0.0,
    sum_parts: SumParts | None = None,
) -> Tensor:
    """Share the missing charge of each system among its atoms."""
    n_charges = charges.shape[1]
    shared = predicted.new_empty(len(totals), 2, n_charges, dtype=torch.float64)
    sums, found = torch.empty_like(shared), predicted.new_empty(len(predicted), n_charges)
    atoms = predicted.contiguous(), rank, system_ptr
    run(_sum_charges, len(totals), *atoms, floor, sums)
    if sum_parts is not None:
        sums = sum_parts(sums)
    run(_equilibrate, len(totals), *atoms, floor, totals, sums, shared, found)
    charges.copy_(found)
    return shared


def equilibrate_backward(
    grad: Tensor,
    predicted: Tensor,
    shared: Tensor,
    systems: Tensor,  # noqa: ARG001
    rank: Tensor,
    system_ptr: Tensor,
    floor: float = 0.0,
    sum_parts: SumParts | None = None,
) -> Tensor:
    """Compute the gradients [N, 2 Q] of the predictions."""
    out = grad.new_empty(predicted.shape)
    sums = torch.empty_like(shared[:, 0])
    atoms = grad.contiguous(), predicted.contiguous(), rank, system_ptr
    run(_sum_gradients, len(shared), *atoms, floor, sums)
    if sum_parts is not None:
        sums = sum_parts(sums)
    run(_equilibrate_bwd, len(shared), *atoms, shared, sums, out)
    return out


@loop
def _sum_charges(predicted, rank, system_ptr, floor, sums, first, last):
    n_charges = sums.shape[2]
    for k in range(first, last):
        for q in range(n_charges):
            sums[k, 0, q] = sums[k, 1, q] = 0.0
        for atom in range(system_ptr[k], system_ptr[k + 1]):
            i = rank[atom]
            for q in range(n_charges):
                f = np.float64(predicted[i, n_charges + q])
                sums[k, 0, q] += predicted[i, q]
                sums[k, 1, q] += f * f + floor


@loop
def _equilibrate(predicted, rank, system_ptr, floor, totals, sums, shared, charges, first, last):
    n_charges = charges.shape[1]
    for k in range(first, last):
        for q in range(n_charges):
            shared[k, 0, q] = totals[k] - sums[k, 0, q]
            shared[k, 1, q] = 1.0 / (sums[k, 1, q] + EPS)
        for atom in range(system_ptr[k], system_ptr[k + 1]):
            i = rank[atom]
            for q in range(n_charges):
                f = np.float64(predicted[i, n_charges + q])
                w = f * f + floor
                charges[i, q] = predicted[i, q] + w * (shared[k, 0, q] * shared[k, 1, q])


@loop
def _sum_gradients(grad, predicted, rank, system_ptr, floor, sums, first, last):
    n_charges = grad.shape[1]
    for k in range(first, last):
        for q in range(n_charges):
            sums[k, q] = 0.0
        for atom in range(system_ptr[k], system_ptr[k + 1]):
            i = rank[atom]
            for q in range(n_charges):
                f = np.float64(predicted[i, n_charges + q])
                sums[k, q] += grad[i, q] * (f * f + floor)


@loop
def _equilibrate_bwd(grad, predicted, rank, system_ptr, shared, sums, out, first, last):
    n_charges = grad.shape[1]
    for k in range(first, last):
        for atom in range(system_ptr[k], system_ptr[k + 1]):
            i = rank[atom]
            for q in range(n_charges):
                grad_c = grad[i, q] - sums[k, q] * shared[k, 1, q]
                f = np.float64(predicted[i, n_charges + q])
                out[i, q] = grad_c
                out[i, n_charges + q] = (f + f) * (shared[k, 0, q] * shared[k, 1, q]) * grad_c
