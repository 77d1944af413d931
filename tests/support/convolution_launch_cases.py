"""Calls of convolutions on graphs, for `launch_cases`.

Products are small. Kernels depend on numbers of components and of hidden values, which are those of
DiffDock and MACE.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from mlff_triton.kernels.convolution.contracted_sums import contracted_sums
from mlff_triton.kernels.convolution.edge_blocks import EdgeInputs
from mlff_triton.kernels.convolution.edge_convolution import edge_convolution
from mlff_triton.kernels.convolution.edge_network import edge_network
from mlff_triton.kernels.convolution.radial_convolution import radial_convolution
from mlff_triton.kernels.convolution.types import TensorProduct, columns_of
from mlff_triton.kernels.types.edges import Knots
from tests.support.operators import derivatives

NODES, EDGES = 3, 66
HIDDEN, MORE_HIDDEN = 64, 144  # in one block, and in two, as in DiffDock
GRAPH = torch.tensor([0, 0, 60, EDGES]), torch.zeros(EDGES).long()
ONE_RECEIVER = torch.tensor([0, EDGES])
KNOTS = Knots(torch.tensor([0.0, 4.0]).double(), torch.tensor([0]).int())

MIXED = TensorProduct.of("2x0e + 1x1o", "1x0e + 1x1o + 1x2e", "2x0e + 1x1o")
DEEP = TensorProduct.of("1x1o + 1x3o", "1x0e + 1x2e", "1x1o + 1x2o + 1x3o")
MANY_CHANNELS = TensorProduct.of("1x0e", "1x0e + 1x1o", "48x0e + 10x1o")
CHANNELWISE = TensorProduct.of(
    "2x0e + 2x1o",
    "1x0e + 1x1o",
    "2x0e + 2x1o",
    [(i, j, k, "uvu", True) for i, j, k in ((0, 0, 0), (1, 1, 0), (0, 1, 1))],
)
WIDE = TensorProduct.of(
    "2x1o + 2x2e",
    "1x0e + 1x1o + 1x2e + 1x3o",
    "2x1o + 2x2e + 2x3o",
    [(i, j, k, "uvu", True) for i, j, k in ((0, 0, 0), (0, 2, 0), (1, 1, 0), (0, 3, 1), (1, 1, 2))],
)
"""The weights of three paths do not fit on consumer GPUs at once."""


def networks(product: TensorProduct, dtype: torch.dtype, hidden: int = MORE_HIDDEN) -> object:
    """Convolve with weights from networks, with gradients."""
    floats = (
        torch.ones(NODES, columns_of(product.node)),
        torch.ones(EDGES, columns_of(product.harmonics)),
        torch.ones(EDGES, hidden),
        torch.ones(hidden, product.n_weights),
        torch.ones(product.n_weights),
    )
    return derivatives(edge_convolution, (*floats, *GRAPH, product, "mean"), dtype)


def contractions(
    product: TensorProduct, hidden: int = MORE_HIDDEN, row_ptr: Tensor = GRAPH[0]
) -> object:
    """Convolve with weights that are applied once per receiver."""
    inputs = EdgeInputs(
        torch.ones(NODES, columns_of(product.node)),
        torch.ones(EDGES, product.n_matrix),
        torch.ones(EDGES, hidden),
        GRAPH[1],
    )
    weight = torch.ones(hidden, product.n_weights)
    return contracted_sums(inputs, weight, weight[0], row_ptr, product, "mean")


def layer_of_network(n_ends: int, dtype: torch.dtype, columns: int = 48) -> object:
    """Apply a layer of a network of edges to features, and to the rows of some nodes of an edge."""
    ends = [(torch.ones(NODES, columns, dtype=dtype), GRAPH[1])] * n_ends
    features = torch.ones(EDGES, columns, dtype=dtype)
    weight = torch.ones((n_ends + 1) * columns, 3 * columns, dtype=dtype)
    return edge_network(features, ends, weight, weight[0])


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


def convolution_calls() -> dict[str, Callable[[], object]]:
    """Convolutions in float32 and their derivatives, with few hidden values."""
    single = torch.float32
    return {
        "edge_convolution, uvw": partial(networks, MIXED, single, HIDDEN),
        "edge_convolution, uvu": partial(networks, CHANNELWISE, single, HIDDEN),
        "edge_convolution, many edges": partial(contractions, MIXED),
        "edge_convolution, more edges": partial(contractions, MIXED, row_ptr=ONE_RECEIVER),
        "edge_network": partial(layer_of_network, 2, single),
        "radial_convolution": partial(tables, CHANNELWISE, single),
    }


def more_convolutions() -> dict[str, Callable[[], object]]:
    """Convolutions in all precisions, with more hidden values and the largest degree."""
    single, *others = torch.float32, torch.float64, torch.float16, torch.bfloat16
    made: dict[str, Callable[[], object]] = {
        f"edge_convolution, {name}, {dtype}": partial(networks, product, dtype)
        for name, product in (("uvw", MIXED), ("uvu", CHANNELWISE))
        for dtype in (single, *others)
    }
    made["edge_convolution, many edges, degree 3"] = partial(contractions, DEEP, HIDDEN)
    for hidden in (MORE_HIDDEN, 256):
        case = f"edge_convolution, many edges, many channels, {hidden}"
        made[case] = partial(contractions, MANY_CHANNELS, hidden)
    made["edge_convolution, uvw, degree 3"] = partial(networks, DEEP, single)
    made["edge_convolution, uvu, degree 3"] = partial(networks, WIDE, single)
    made |= {
        f"edge_network, {n_ends} ends, {dtype}": partial(layer_of_network, n_ends, dtype)
        for n_ends in (0, 1, 2)
        for dtype in (single, *others)
    }
    made["edge_network, few columns"] = partial(layer_of_network, 2, single, 8)
    made["radial_convolution, degree 3"] = partial(tables, WIDE, single)
    made["radial_convolution, float64"] = partial(tables, CHANNELWISE, torch.float64)
    return made
