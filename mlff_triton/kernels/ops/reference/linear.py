"""Linear layers with activation, scale and residual, in plain PyTorch.

y = activation(x W^T + bias) * scale + residual
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from mlff_triton.kernels.common.reference.activations import activate


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    scale: Tensor | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """Compute `mlff_triton.kernels.ops.linear.linear`, in the default precision of PyTorch."""
    y = activate(functional.linear(x, weight, bias), activation or "none")
    if scale is not None:
        y = y * scale
    return y if residual is None else y + residual
