"""Gradients of a fully connected convolution, from sums of outer products per receiver.

Messages are linear in outer products of coupled rows and hidden values, with weights that edges
share. Gradients of these products are equal for all edges of a receiver, so they are computed once
for each: see `mlff_triton.kernels.convolution.outer_sums`. Receivers are taken in groups whose sums
fit a limit of memory.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from typing import NamedTuple

from torch import Tensor

from mlff_triton.kernels.convolution.coupled_columns import CoupledColumns, coupled_columns
from mlff_triton.kernels.convolution.coupled_rows import (
    coupled_rows,
    matrix_gradient,
    node_gradient,
)
from mlff_triton.kernels.convolution.coupling_matrices import (
    coupling_matrices,
    harmonics_gradient,
)
from mlff_triton.kernels.convolution.graphs import receiver_gradients
from mlff_triton.kernels.convolution.mixed_sums import weight_gradients, write_sums_gradient
from mlff_triton.kernels.convolution.outer_sums import (
    padded_hidden,
    splits_of_edges,
    write_coupled_gradient,
    write_hidden_gradient,
    write_outer_sums,
)
from mlff_triton.kernels.convolution.types import (
    BIAS,
    HARMONICS,
    HIDDEN,
    NODE,
    WEIGHT,
    TensorProduct,
)

_BYTES = 256 * 2**20  # of the sums of a group
_MULTIPLE = 64  # of the receivers of a group, for aligned addresses


def edge_gradients(
    wanted: Collection[int],
    grad: Tensor,
    node: Tensor,
    edge_sh: Tensor,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    row_ptr: Tensor,
    senders: Tensor,
    product: TensorProduct,
    reduce: str,
) -> list[Tensor | None]:
    """Return the ``wanted`` gradients of nodes, harmonics, hidden values, weight and bias.

    Takes the gradients of the output, followed by the arguments of the convolution. Gradients that
    are not wanted are None; those of weight and bias are computed together. The others are in the
    dtype of sums.
    """
    if not (senders.shape[0] and product.paths):
        floats = node, edge_sh, hidden, weight, bias
        return [x.new_zeros(x.shape) if k in wanted else None for k, x in enumerate(floats)]
    columns = coupled_columns(product, node.device)
    matrices = coupling_matrices(edge_sh, product)
    node, hidden, weight, bias = (x.contiguous() for x in (node, hidden, weight, bias))
    edges = _Edges(node, matrices, hidden, senders.contiguous(), columns)
    row_ptr = row_ptr.contiguous()
    grad = receiver_gradients(grad, row_ptr, reduce, matrices.dtype)
    receivers = _Receivers(grad, row_ptr, _sums(matrices, grad, hidden, columns))
    coupled = None
    if not {HIDDEN, WEIGHT, BIAS}.isdisjoint(wanted):
        coupled = coupled_rows(node, matrices, edges.senders, columns)
    of_hidden, of_coupled = _edge_terms(wanted, coupled, edges, receivers, weight, bias)
    of_node = of_sh = of_weight = of_bias = None
    if of_coupled is not None and NODE in wanted:
        of_node = node_gradient(of_coupled, matrices, edges.senders, node.shape[0], columns)
    if of_coupled is not None and HARMONICS in wanted:
        of_matrices = matrix_gradient(of_coupled, node, edges.senders, columns)
        of_sh = harmonics_gradient(of_matrices, product)
    if coupled is not None and not {WEIGHT, BIAS}.isdisjoint(wanted):
        of_weight, of_bias = _weight_terms(coupled, edges, receivers, weight)
    return [of_node, of_sh, of_hidden, of_weight, of_bias]


class _Edges(NamedTuple):
    """Inputs of edges, with their coupling matrices, and the tables of the product."""

    node: Tensor
    matrices: Tensor
    hidden: Tensor
    senders: Tensor
    columns: CoupledColumns


class _Receivers(NamedTuple):
    """Gradients of the sums of receivers, row pointers, and a buffer for some of the sums."""

    grad: Tensor
    row_ptr: Tensor
    sums: Tensor

    def some(self) -> Iterator[_Receivers]:
        """Yield groups of receivers whose sums fit in the buffer."""
        n_nodes, size = self.grad.shape[0], self.sums.shape[0]
        if size == n_nodes:
            yield self
            return
        for first in range(0, n_nodes, size):
            grad = self.grad[first : first + size]
            row_ptr = self.row_ptr[first : first + len(grad) + 1]
            yield _Receivers(grad, row_ptr, self.sums[: len(grad)])


def _sums(matrices: Tensor, grad: Tensor, hidden: Tensor, columns: CoupledColumns) -> Tensor:
    """Return a buffer for the sums of receivers, [n, C, padded hidden] in the dtype of sums."""
    shape = columns.columns.shape[0], padded_hidden(hidden.shape[1])
    fitting = _BYTES // (math.prod(shape) * matrices.element_size())
    size = max(1, fitting // _MULTIPLE) * _MULTIPLE
    return matrices.new_empty(min(size, grad.shape[0]), *shape)


def _edge_terms(
    wanted: Collection[int],
    coupled: Tensor | None,
    edges: _Edges,
    receivers: _Receivers,
    weight: Tensor,
    bias: Tensor,
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of hidden values [E, H] and of coupled rows [E, C], if needed."""
    of_hidden = of_coupled = None
    n_edges, columns, hidden = edges.senders.shape[0], edges.columns, edges.hidden
    if HIDDEN in wanted:
        of_hidden = edges.matrices.new_empty(hidden.shape)
    if not {NODE, HARMONICS}.isdisjoint(wanted):
        of_coupled = edges.matrices.new_empty(n_edges, columns.columns.shape[0])
    if of_hidden is None and of_coupled is None:
        return None, None
    splits = splits_of_edges(n_edges, receivers.grad.shape[0])
    for grad, row_ptr, sums in receivers.some():
        write_sums_gradient(grad, weight, bias, row_ptr, columns, sums)
        if of_hidden is not None and coupled is not None:
            write_hidden_gradient(sums, coupled, row_ptr, of_hidden, splits)
        if of_coupled is not None:
            write_coupled_gradient(sums, hidden, row_ptr, of_coupled, splits)
    return of_hidden, of_coupled


def _weight_terms(
    coupled: Tensor, edges: _Edges, receivers: _Receivers, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients of weight [H, weights] and bias [weights]."""
    totals: list[Tensor] = []
    for grad, row_ptr, sums in receivers.some():
        write_outer_sums(coupled, edges.hidden, row_ptr, sums)
        splits = weight_gradients(grad, sums, weight, edges.columns)
        parts = [each.sum(0) if each.shape[0] > 1 else each[0] for each in splits]
        totals = [x.add_(y) for x, y in zip(totals, parts, strict=True)] if totals else parts
    of_weight, of_bias = totals
    return of_weight, of_bias
