"""The largest logit of each row and its index, in plain PyTorch.

    logit = max_v (norm(x) W^T + b)_v      index = the smallest v with that logit

The normalization is optional.
"""

from __future__ import annotations

from torch import Tensor

from mlff_triton.kernels.transformer.reference.token_linear import token_linear
from mlff_triton.kernels.transformer.types import TopLogit, largest
from mlff_triton.kernels.types.norm import Norm


def top_logit(x: Tensor, weight: Tensor, bias: Tensor, norm: Norm | None = None) -> TopLogit:
    """Compute `mlff_triton.kernels.transformer.top_logit.top_logit` for all rows."""
    return largest(token_linear(x, weight, bias, norm))
