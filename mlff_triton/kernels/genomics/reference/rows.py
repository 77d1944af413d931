"""Linear maps and normalizations of rows in plain PyTorch."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from mlff_triton.kernels.types.norm import Norm


def linear(x: Tensor, weight: Tensor, bias: Tensor, activation: str) -> Tensor:
    """Apply a linear map to rows [R, K], then "relu" or "none"."""
    y = functional.linear(x, weight, bias)
    return y.relu_() if activation == "relu" else y


def normalize(x: Tensor, norm: Norm, shift: Tensor | None) -> Tensor:
    """Normalize rows [R, C] after adding a vector [C], if it is given."""
    weight, bias, eps = norm
    exact = x.to(weight.dtype) if shift is None else x + shift
    return functional.layer_norm(exact, exact.shape[1:], weight, bias, eps).to(x.dtype)
