"""Maxima of pairs of neighboring positions, in plain PyTorch.

activated_s = gelu(a x_s + b)
y_s = max(x_2s, x_(2s+1))      z_s = gelu(c y_s + d)      gelu(u) = u sigmoid(1.702 u)
"""

from __future__ import annotations

from torch import Tensor

from mlff_triton.kernels.genomics.reference.convolution import activate
from mlff_triton.kernels.genomics.types import Activation, PairMaxima


def pair_maxima(
    x: Tensor, activation: Activation | None = None, skip: Activation | None = None
) -> PairMaxima:
    """Compute `mlff_triton.kernels.genomics.pair_maxima.pair_maxima`."""
    rows = x.unflatten(1, (-1, 2)).amax(2)
    return PairMaxima(
        rows,
        None if activation is None else activate(rows, activation),
        None if skip is None else activate(x, skip),
    )
