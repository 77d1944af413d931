"""Linear maps and normalizations of rows, by the kernels of Transformers where they apply."""

from __future__ import annotations

from torch import Tensor

from mlff_triton.kernels.genomics.reference import rows as reference
from mlff_triton.kernels.transformer import wide_linear as wide
from mlff_triton.kernels.transformer.token_norm import token_norm
from mlff_triton.kernels.types.norm import Norm


def linear(x: Tensor, weight: Tensor, bias: Tensor, activation: str) -> Tensor:
    """Apply a linear map to rows [R, K], then "relu" or "none"."""
    if wide.fits(x, weight):
        return wide.wide_linear(x, weight, bias, None, activation=activation)
    return reference.linear(x, weight, bias, activation)


def normalize(x: Tensor, norm: Norm, shift: Tensor | None) -> Tensor:
    """Normalize rows [R, C] after adding a vector [C], if it is given."""
    weight, bias, eps = norm
    assert bias is not None
    return token_norm(x, weight, bias, eps, None, shift)
