"""Linear layers with activation, scale and residual, in plain PyTorch.

y = activation(x W^T + bias) * scale + residual

If a number of rows is given, only the first ones are computed, and the others are zero.
"""

from __future__ import annotations

import torch
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
    precision: str | None = None,
    rows: Tensor | None = None,
) -> Tensor:
    """Compute `mlff_triton.kernels.ops.linear.linear`, in the default precision of PyTorch."""
    del precision
    y = activate(functional.linear(x, weight, bias), activation or "none")
    if scale is not None:
        y = y * scale
    if rows is not None:
        n_rows = y.shape[:-1].numel()
        first = torch.arange(n_rows, device=y.device).view(y.shape[:-1]) < rows
        y = y.where(first[..., None], 0)
    return y if residual is None else y + residual
