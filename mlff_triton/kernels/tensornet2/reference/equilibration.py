"""Equilibration of partial charges, in plain PyTorch.

Arguments and results are those of `mlff_triton.kernels.tensornet2.equilibration`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.kernels.common.reference.tensors import sum_at_receivers
from mlff_triton.kernels.types.charges import SumParts

EPS = 1e-6


def equilibrate(
    predicted: Tensor,
    totals: Tensor,
    systems: Tensor,
    rank: Tensor,
    system_ptr: Tensor,
    charges: Tensor,
    floor: float = 0.0,
    sum_parts: SumParts | None = None,
) -> Tensor:
    """Share the missing charge of each system among its atoms."""
    c, f = predicted.double().tensor_split(2, dim=1)
    w = f * f + floor
    sums = _system_sums(torch.stack([c, w], dim=1), rank, system_ptr)
    if sum_parts is not None:
        sums = sum_parts(sums)
    excess, inverse = totals[:, None] - sums[:, 0], 1 / (sums[:, 1] + EPS)
    charges.copy_(c + w * (inverse * excess)[systems.long()])
    return torch.stack([excess, inverse], dim=1)


def equilibrate_backward(
    grad: Tensor,
    predicted: Tensor,
    shared: Tensor,
    systems: Tensor,
    rank: Tensor,
    system_ptr: Tensor,
    floor: float = 0.0,
    sum_parts: SumParts | None = None,
) -> Tensor:
    """Compute the gradients [N, 2 Q] of the predictions."""
    f = predicted.double().tensor_split(2, dim=1)[1]
    excess, inverse = shared.unbind(1)
    sums = _system_sums(grad * (f * f + floor), rank, system_ptr)
    if sum_parts is not None:
        sums = sum_parts(sums)
    grad_c = grad - (sums * inverse)[systems.long()]
    grad_f = 2 * f * (inverse * excess)[systems.long()] * grad_c
    return torch.cat([grad_c, grad_f], dim=1).to(grad.dtype)


def _system_sums(x: Tensor, rank: Tensor, system_ptr: Tensor) -> Tensor:
    """Sum rows [N, ...] over the first of the user's atoms, those of systems: [B, ...]."""
    lengths = system_ptr.diff().long()
    systems = torch.arange(len(lengths), device=x.device).repeat_interleave(lengths)
    return sum_at_receivers(x[rank[: len(systems)].long()], systems, len(lengths))
