"""Calls of convolutions on graphs, in the sizes of DiffDock and MACE, for `launch_cases`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from mlff_triton.kernels.convolution.edge_convolution import edge_convolution
from mlff_triton.kernels.convolution.radial_convolution import radial_convolution
from mlff_triton.kernels.convolution.types import TensorProduct, columns_of
from mlff_triton.kernels.types.edges import Knots
from tests.support.operators import derivatives

NODES, EDGES, HIDDEN = 3, 130, 144
GRAPH = torch.tensor([0, 0, 60, EDGES]), torch.zeros(EDGES).long()
KNOTS = Knots(torch.tensor([0.0, 4.0]).double(), torch.tensor([0]).int())

MIXED = TensorProduct.of(
    "48x0e + 10x1o + 10x1e + 48x0o",
    "1x0e + 1x1o + 1x2e",
    "48x0e + 10x1o + 10x1e + 48x0o",
)
CHANNELWISE = TensorProduct.of(
    "128x0e + 128x1o",
    "1x0e + 1x1o + 1x2e",
    "128x0e + 128x1o + 128x2e",
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

    def convolve(*given: torch.Tensor) -> torch.Tensor:
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
