"""Activations of rows that stay in a processor's cache, by PyTorch's vectorized functions."""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.kernels.common.reference.activations import activate, activate_derivative

__all__ = ["activate", "activate_backward", "activate_with_slope"]

SILU = ("silu", "swish")


def activate_with_slope(z: Tensor, activation: str, slope: Tensor) -> Tensor:
    """Return activated values, and write the derivatives to ``slope``."""
    if activation in SILU:
        torch.ops.aten.silu_backward(torch.ones_like(z), z, grad_input=slope)
    else:
        slope.copy_(activate_derivative(z, activation))
    return activate(z, activation)


def activate_backward(grad: Tensor, z: Tensor, activation: str) -> Tensor:
    """Return gradients by the values before an activation, given those by the values after it."""
    if activation in SILU:
        return torch.ops.aten.silu_backward(grad, z)
    return activate_derivative(z, activation).mul_(grad)
