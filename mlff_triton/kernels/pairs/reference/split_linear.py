"""Linear maps of rows that are split into halves, in plain PyTorch."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import linear

from mlff_triton.kernels.numerics.split import SplitOperand


def split_rows(x: Tensor) -> SplitOperand:
    """Compute `mlff_triton.kernels.pairs.split_linear.split_rows`."""
    return SplitOperand.of(x)


def linear_map(x: Tensor, weight: Tensor | SplitOperand, bias: Tensor | None = None) -> Tensor:
    """Compute `mlff_triton.kernels.pairs.split_linear.linear_map`."""
    if isinstance(weight, SplitOperand):
        return split_linear(split_rows(x), weight, bias).float()
    return linear(x.to(weight.dtype), weight, bias)


def split_linear(x: SplitOperand, weight: SplitOperand, bias: Tensor | None = None) -> Tensor:
    """Compute `mlff_triton.kernels.pairs.split_linear.split_linear`, in float64."""
    return linear(x.joined(), weight.joined(), None if bias is None else bias.double())
