"""Equivariant convolution with tabulated functions of the distance as weights, in plain PyTorch.

    y_i = sum_e sum_p f_p(d_e) (x_j *_p s_e)

over the edges ``e = (i, j)`` that node ``i`` receives, for node features x, spherical harmonics s,
and paths p of a tensor product that keeps channels. S. Batzner et al., "E(3)-equivariant graph
neural networks for data-efficient and accurate interatomic potentials",
https://arxiv.org/abs/2101.03164; I. Batatia et al., "MACE", https://arxiv.org/abs/2206.07697.
"""

from __future__ import annotations

from torch import Tensor

from mlff_triton.kernels.common.reference.radial_table import look_up
from mlff_triton.kernels.convolution.clebsch_gordan import coupling
from mlff_triton.kernels.convolution.reference.edge_convolution import edge_products, reduce_edges
from mlff_triton.kernels.convolution.types import TensorProduct
from mlff_triton.kernels.types.edges import Knots


def radial_convolution(
    node: Tensor,
    edge_sh: Tensor,
    distance: Tensor,
    table: Tensor,
    knots: Knots,
    row_ptr: Tensor,
    senders: Tensor,
    product: TensorProduct,
    reduce: str = "sum",
) -> Tensor:
    """Compute `mlff_triton.kernels.convolution.radial_convolution.radial_convolution`."""
    matrices = edge_sh @ coupling(product).to(edge_sh).T  # [E, P]
    weights = tabulated_weights(distance, table, knots)
    messages = edge_products(node, matrices, weights, senders, product)
    return reduce_edges(messages, row_ptr, reduce)


def tabulated_weights(distance: Tensor, table: Tensor, knots: Knots) -> Tensor:
    """Return weights [E, weights] from a table [K + 1, 3, weights]."""
    interval, fraction, width = knots.locate(distance.double())
    geometry = interval, fraction.to(distance.dtype), width.to(distance.dtype)
    return look_up(table[:, :, None], *geometry)[0]
