"""Activations of rows that stay in a processor's cache, by PyTorch's vectorized functions."""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.kernels.common.reference.activations import activate, activate_derivative

__all__ = ["activate", "activate_backward", "activate_with_slope"]

SILU = ("silu", "swish")


def activate_with_slope(z: Tensor, activation: str, slope: Tensor) -> Tensor:
    """Return activated values, and write the derivatives to ``slope``."""
    if activation not in SILU:
        slope.copy_(activate_derivative(z, activation))
        return activate(z, activation)
    gate = torch.sigmoid(z)
    value = z * gate
    # One minus the gate comes first: values that grow with z would cancel only up to rounding.
    torch.neg(gate, out=slope).add_(1).mul_(value).add_(gate)
    return value


def activate_backward(grad: Tensor, z: Tensor, activation: str) -> Tensor:
    """Return gradients by the values before an activation, given those by the values after it."""
    slope = torch.empty_like(z)
    activate_with_slope(z, activation, slope)
    return slope.mul_(grad)
