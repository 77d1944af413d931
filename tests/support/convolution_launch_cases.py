"""Calls of convolutions on graphs, for `launch_cases`.

Products are small. Kernels depend on numbers of components and of hidden values, which are those of
DiffDock and MACE.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from mlff_triton.kernels.convolution.edge_convolution import edge_convolution
from mlff_triton.kernels.convolution.radial_convolution import radial_convolution
from mlff_triton.kernels.convolution.types import TensorProduct, columns_of
from mlff_triton.kernels.types.edges import Knots
from tests.support.operators import derivatives

NODES, EDGES, HIDDEN = 3, 66, 144
GRAPH = torch.tensor([0, 0, 60, EDGES]), torch.zeros(EDGES).long()
KNOTS = Knots(torch.tensor([0.0, 4.0]).double(), torch.tensor([0]).int())

MIXED = TensorProduct.of("2x0e + 1x1o", "1x0e + 1x1o + 1x2e", "2x0e + 1x1o")
DEEP = TensorProduct.of("1x1o + 1x3o", "1x0e + 1x2e", "1x1o + 1x2o + 1x3o")
CHANNELWISE = TensorProduct.of(
    "2x0e + 2x1o",
    "1x0e + 1x1o + 1x2e",
    "2x0e + 2x1o + 2x2e",
    [(i, j, k, "uvu", True) for i, j, k in ((0, 0, 0), (1, 1, 0), (0, 1, 1), (0, 2, 2), (1, 1, 2))],
)


def networks(product: TensorProduct, dtype: torch.dtype) -> object:
    """Convolve with weights from networks, with gradients."""
    floats = (
        torch.ones(NODES, columns_of(product.node)),
        torch.ones(EDGES, columns_of(product.harmonics)),
        torch.ones(EDGES, HIDDEN),
        torch.ones(HIDDEN, product.n_weights),
        torch.ones(product.n_weights),
    )
    return derivatives(edge_convolution, (*floats, *GRAPH, product, "mean"), dtype)


def tables(product: TensorProduct, dtype: torch.dtype) -> object:
    """Convolve with weights from tables, with gradients."""
    table = torch.ones(2, 3, product.n_weights, dtype=dtype)
    floats = (
        torch.ones(NODES, columns_of(product.node)),
        torch.ones(EDGES, columns_of(product.harmonics)),
        torch.ones(EDGES),
    )

    def convolve(*given: Tensor) -> Tensor:
        return radial_convolution(*given, table, KNOTS, *GRAPH, product)

    return derivatives(convolve, floats, dtype)


def convolution_calls(dtype: torch.dtype) -> dict[str, Callable[[], object]]:
    """Convolutions and their derivatives."""
    made: dict[str, Callable[[], object]] = {
        f"edge_convolution, uvw, {dtype}": partial(networks, MIXED, dtype),
        f"edge_convolution, uvu, {dtype}": partial(networks, CHANNELWISE, dtype),
    }
    if dtype in (torch.float32, torch.float64):
        made[f"radial_convolution, {dtype}"] = partial(tables, CHANNELWISE, dtype)
    return made


def more_convolutions() -> dict[str, Callable[[], object]]:
    """Convolutions in other precisions, and one of the largest degree."""
    made: dict[str, Callable[[], object]] = {
        "edge_convolution, degree 3": partial(networks, DEEP, torch.float32)
    }
    for dtype in (torch.float64, torch.float16, torch.bfloat16):
        made |= convolution_calls(dtype)
    return made
