"""Network from the norms of tensors to factors of their parts, in plain PyTorch.

Arguments and results are those of `mlff_triton.kernels.tensornet.scalar_network`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.kernels.common.reference.activations import activate, activate_derivative
from mlff_triton.kernels.numerics.split import SplitWeight

EPS = 1e-5


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
    x, _ = normalize_rows(norm)
    hidden = torch.addmm(bias1, x * gain + shift, weight1.weight.T)
    scales = torch.addmm(bias2, activate(hidden, activation), weight2.weight.T)
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
    inner = (grad.flatten(1) @ weight2.weight.T) * activate_derivative(hidden, activation)
    return normalize_rows_backward((inner @ weight1.weight.T) * gain, norm)


def normalize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows scaled to zero mean and unit variance, and the scaling factors [N, 1]."""
    centered = x - x.mean(1, keepdim=True)
    rstd = torch.rsqrt(centered.square().mean(1, keepdim=True) + EPS)
    return centered * rstd, rstd


def normalize_rows_backward(grad: Tensor, x: Tensor) -> Tensor:
    """Return the gradient of rows, given that of the normalized rows."""
    x, rstd = normalize_rows(x)
    along = (grad * x).mean(1, keepdim=True)
    return (grad - grad.mean(1, keepdim=True) - x * along) * rstd
