"""Linear maps of rows that are split into halves, in plain PyTorch."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import linear

from mlff_triton.kernels.types.split_rows import SplitRows


def split_rows(x: Tensor) -> SplitRows:
    """Compute `mlff_triton.kernels.pairs.split_linear.split_rows`."""
    return SplitRows.of(x)


def linear_map(x: Tensor, weight: Tensor | SplitRows, bias: Tensor | None = None) -> Tensor:
    """Compute `mlff_triton.kernels.pairs.split_linear.linear_map`."""
    if isinstance(weight, SplitRows):
        return split_linear(split_rows(x), weight, bias).float()
    return linear(x.to(weight.dtype), weight, bias)


def split_linear(x: SplitRows, weight: SplitRows, bias: Tensor | None = None) -> Tensor:
    """Compute `mlff_triton.kernels.pairs.split_linear.split_linear`, in float64."""
    return linear(x.joined(), weight.joined(), None if bias is None else bias.double())
