"""Equivariant convolution with weights from a network per edge, in plain PyTorch.

    y_i = sum_e sum_p W_p(h_e) (x_j *_p s_e)          W(h) = h weight + bias

over the edges ``e = (i, j)`` that node ``i`` receives, for node features x, spherical harmonics s,
and paths p of a tensor product. M. Geiger, T. Smidt, "e3nn: Euclidean neural networks",
https://arxiv.org/abs/2207.09453, sections 3 and 5.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.kernels.convolution.clebsch_gordan import coupling
from mlff_triton.kernels.convolution.types import TensorProduct, columns_of, first_column


def edge_convolution(
    node: Tensor,
    edge_sh: Tensor,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    row_ptr: Tensor,
    senders: Tensor,
    product: TensorProduct,
    reduce: str = "sum",
) -> Tensor:
    """Compute `mlff_triton.kernels.convolution.edge_convolution.edge_convolution`."""
    weights = hidden @ weight
    if bias is not None:
        weights = weights + bias
    matrices = edge_sh @ coupling(product).to(edge_sh).T  # [E, P]
    messages = edge_products(node, matrices, weights, senders, product)
    return reduce_edges(messages, row_ptr, reduce)


def edge_products(
    node: Tensor, matrices: Tensor, weights: Tensor, senders: Tensor, product: TensorProduct
) -> Tensor:
    """Return the products of sending nodes and edges, [E, output].

    Parameters
    ----------
    node : [N, node columns]
        Rows of all nodes.
    matrices : [E, P]
        Coupling matrices of edges, from their harmonics by `coupling`.
    weights : [E, weights]
        Weights of each edge.
    senders : int64 [E]
        Sending nodes.
    product : TensorProduct
        Irreps and paths.
    """
    n_edges = len(senders)
    x = node.index_select(0, senders)
    sums: list[list[Tensor]] = [[] for _ in product.output]
    matrix = start = 0
    for path in product.paths:
        first, out = product.node[path.node], product.output[path.output]
        copies = product.harmonics[path.harmonic].count
        column = first_column(product.node, path.node)
        u = x[:, column : column + first.columns].reshape(n_edges, first.count, first.width)
        size = copies * first.width * out.width
        c = matrices[:, matrix : matrix + size].reshape(n_edges, copies, first.width, out.width)
        w = weights[:, start : start + product.weights_of(path)]
        if product.mode == "uvw":
            w = w.reshape(n_edges, first.count, copies, out.count)
            term = torch.einsum("eua,evam,euvw->ewm", u, c, w)
        else:
            w = w.reshape(n_edges, first.count, copies)
            term = torch.einsum("eua,evam,euv->eum", u, c, w)
        sums[path.output].append(term.reshape(n_edges, out.columns))
        matrix, start = matrix + size, start + product.weights_of(path)
    blocks = [
        torch.stack(terms).sum(0) if terms else x.new_zeros(n_edges, irrep.columns)
        for terms, irrep in zip(sums, product.output, strict=True)
    ]
    return torch.cat(blocks, 1) if blocks else x.new_zeros(n_edges, columns_of(product.output))


def reduce_edges(messages: Tensor, row_ptr: Tensor, reduce: str) -> Tensor:
    """Return sums or means [N, columns] of the messages that each node receives; 0 without any."""
    count = row_ptr.diff()
    nodes = torch.arange(len(count), device=messages.device)
    receivers = nodes.repeat_interleave(count, output_size=len(messages))
    sums = messages.new_zeros(len(count), messages.shape[1]).index_add(0, receivers, messages)
    return sums / count.clamp(min=1)[:, None] if reduce == "mean" else sums
