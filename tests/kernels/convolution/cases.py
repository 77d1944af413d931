"""Graphs and inputs of convolutions."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mlff_triton.kernels.convolution.types import TensorProduct, columns_of

MIXED = TensorProduct.of("3x0e + 2x1o", "1x0e + 2x1o + 1x2e", "18x0e + 2x1o + 1x1e + 1x2e")
"""A product with two parts of channels, filler, repeated harmonics and an output of degree 2."""

SCALARS = TensorProduct.of("2x0e", "1x0e", "3x0e + 1x1o")
"""A product whose last output has no path."""

DEEP = TensorProduct.of("1x1o + 1x3o", "1x0e + 1x2e", "1x0o + 1x2o + 1x3o")
"""A product of degree 3."""

CHANNELWISE = TensorProduct.of(
    "3x0e + 3x1o",
    "1x0e + 2x1o",
    "3x0e + 3x1o + 3x1o + 3x1e",
    [
        (0, 0, 0, "uvu", True),
        (1, 1, 0, "uvu", True),
        (0, 1, 1, "uvu", True),
        (1, 0, 2, "uvu", True),
        (1, 1, 3, "uvu", True),
    ],
)

WIDE = TensorProduct.of(
    "70x0e + 70x2e + 2x3o",
    "1x0e + 1x2e + 1x3o",
    "70x0e + 2x3o + 70x3o + 2x1o + 70x1o",
    [
        (0, 0, 0, "uvu", True),
        (2, 1, 1, "uvu", True),
        (0, 2, 2, "uvu", True, 0.0),
        (1, 1, 0, "uvu", True),
        (1, 2, 2, "uvu", True, 2.0),
        (2, 1, 3, "uvu", True),
    ],
)
"""A product that keeps channels, of degree 3, with two numbers of channels, more channels than a
block, a path that is weighted with 0, and an output without a path."""


class Inputs(NamedTuple):
    """Floating-point inputs and the graph."""

    node: Tensor
    edge_sh: Tensor
    hidden: Tensor
    weight: Tensor
    bias: Tensor
    row_ptr: Tensor
    senders: Tensor

    def to(self, dtype: torch.dtype) -> Inputs:
        floats = (t.detach().to(dtype) for t in self[:5])
        return Inputs(*floats, *self[5:])


def inputs(
    product: TensorProduct, counts: list[int], n_hidden: int, device: str, n_nodes: int = 3
) -> Inputs:
    """Return float64 inputs that float16 holds exactly, for receivers with numbers of edges."""
    rng = torch.Generator().manual_seed(n_hidden)
    n_edges = sum(counts)

    def randn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=rng).half().double()

    found = Inputs(
        randn(n_nodes, columns_of(product.node)),
        randn(n_edges, columns_of(product.harmonics)),
        randn(n_edges, n_hidden),
        (randn(n_hidden, product.n_weights) / n_hidden**0.5).half().double(),
        randn(product.n_weights),
        torch.tensor([0, *counts]).cumsum(0),
        torch.randint(n_nodes, (n_edges,), generator=rng),
    )
    return Inputs(*(t.to(device) for t in found))
