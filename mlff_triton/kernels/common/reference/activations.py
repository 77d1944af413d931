"""Activations by name, and their derivatives, in plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

_LN_2 = 0.6931471805599453

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "silu": functional.silu,
    "swish": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "gelu_sigmoid": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": functional.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "ssp": lambda x: functional.softplus(x) - _LN_2,
    "mish": functional.mish,
}


def activate(x: Tensor, activation: str) -> Tensor:
    """Apply the activation of that name."""
    return ACTIVATIONS[activation](x)


def activate_derivative(x: Tensor, activation: str) -> Tensor:
    """Return the derivative of `activate`, for the activations of TensorNet and "none"."""
    if activation == "none":
        return torch.ones_like(x)
    if activation == "tanh":
        return 1 - torch.tanh(x) ** 2
    s = torch.sigmoid(x)
    if activation == "sigmoid":
        return s * (1 - s)
    if activation == "ssp":
        return s
    if activation in ("silu", "swish"):
        return s * (1 + x * (1 - s))
    assert activation == "mish", f"unknown activation {activation}"
    t = torch.tanh(functional.softplus(x))
    return t + x * s * (1 - t * t)
