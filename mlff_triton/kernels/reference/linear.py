"""Linear layers with what is usually fused to their end, in plain PyTorch.

y = activation(x W^T + bias) * scale + residual
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": torch.clone,
    "silu": functional.silu,
    "swish": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "ssp": lambda x: functional.softplus(x) - 0.6931471805599453,
    "mish": functional.mish,
}


def activate(x: Tensor, activation: str) -> Tensor:
    """Activation of that name."""
    return ACTIVATIONS[activation](x)


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    scale: Tensor | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """As `mlff_triton.kernels.linear.linear`, but for its ``precision``."""
    y = activate(functional.linear(x, weight, bias), activation or "none")
    if scale is not None:
        y = y * scale
    return y if residual is None else y + residual
