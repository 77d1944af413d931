"""Network from the norms of tensors to factors of their parts, in PyTorch.

Arguments and results are those of `mlff_triton.kernels.tensornet.reference.scalar_network`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.kernels.common.cpu.activations import activate, activate_backward
from mlff_triton.kernels.common.cpu.rows import normalize_rows, normalize_rows_backward, over_rows
from mlff_triton.kernels.numerics.split import SplitWeight


def scalar_network(
    norm: Tensor,
    gain: Tensor,
    shift: Tensor,
    weight1: SplitWeight,
    bias1: Tensor,
    weight2: SplitWeight,
    bias2: Tensor,
    activation: str,
) -> tuple[Tensor, Tensor]:
    """Compute hidden values [N, 2 F] and factors [N, 3, F], both before their activation."""
    hidden = norm.new_empty(len(norm), len(bias1))
    scales = norm.new_empty(len(norm), len(bias2))

    def compute(first: int, last: int) -> None:
        x = normalize_rows(norm[first:last], gain, shift)
        z = torch.addmm(bias1, x, weight1.weight.T, out=hidden[first:last])
        torch.addmm(bias2, activate(z, activation), weight2.weight.T, out=scales[first:last])

    over_rows(compute, len(norm))
    return hidden, scales.unflatten(1, (3, -1))


def scalar_network_backward(
    grad: Tensor,
    norm: Tensor,
    gain: Tensor,
    weight1: SplitWeight,
    weight2: SplitWeight,
    hidden: Tensor,
    activation: str,
) -> Tensor:
    """Compute the gradients [N, F] of the norms."""
    out, rows = torch.empty_like(norm), grad.flatten(1)

    def compute(first: int, last: int) -> None:
        given = rows[first:last] @ weight2.weight.T
        inner = activate_backward(given, hidden[first:last], activation) @ weight1.weight.T
        out[first:last] = normalize_rows_backward(inner, norm[first:last], gain)

    over_rows(compute, len(norm))
    return out
