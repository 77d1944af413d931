"""Coupled rows of edges, and gradients of nodes and coupling matrices from those of the rows.

    z_e[r, m]      = sum_a x_j[u, a] C_e[a, m]
    grad x_j[u, a] = sum_e,r,m C_e[a, m] grad z_e[r, m]           over the edges that j sends
    grad C_e[a, m] = sum_u x_j[u, a] grad z_e[r, m]               over the rows r of a path

with the columns ``(r, m)`` of `mlff_triton.kernels.convolution.coupled_columns`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.convolution.coupled_columns import FIELDS, CoupledColumns
from mlff_triton.kernels.convolution.graphs import by_sender
from mlff_triton.kernels.convolution.plan import FILLER

_FIELDS = tl.constexpr(FIELDS)
_FILLER = tl.constexpr(FILLER)
_EDGES, _COLUMNS = 16, 64  # per program
_SENT = 8  # edges of a node at a time


@triton.jit
def _coupled_rows_fwd_kernel(
    node_ptr,
    matrix_ptr,
    sender_ptr,
    columns_ptr,
    out_ptr,
    n_edges,
    n_node,
    n_matrix,
    n_coupled,
    WIDTH: tl.constexpr,
    M: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Write coupled rows [n_edges, n_coupled]. Grid: (tiles of M edges, blocks of COLUMNS)."""
    edge = (tl.program_id(0) * M + tl.arange(0, M)).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    live, inside = (edge < n_edges)[:, None], column < n_coupled
    sender = tl.load(sender_ptr + edge, edge < n_edges, other=0).to(tl.int64)
    columns_ptr += column * _FIELDS
    x_start = tl.load(columns_ptr, inside, other=0)
    width = tl.load(columns_ptr + 1, inside, other=0)
    c_start = tl.load(columns_ptr + 2, inside, other=0)
    c_stride = tl.load(columns_ptr + 3, inside, other=0)
    node_ptr += sender[:, None] * n_node + x_start[None, :]
    matrix_ptr += edge[:, None] * n_matrix + c_start[None, :]

    total = tl.zeros((M, COLUMNS), out_ptr.dtype.element_ty)
    for a in tl.static_range(WIDTH):
        mask = live & (a < width)[None, :]
        x = tl.load(node_ptr + a, mask, other=0.0)
        c = tl.load(matrix_ptr + a * c_stride[None, :], mask, other=0.0)
        total += x.to(total.dtype) * c.to(total.dtype)
    tl.store(out_ptr + edge[:, None] * n_coupled + column[None, :], total, live & inside[None, :])


def coupled_rows(
    node: Tensor, matrices: Tensor, senders: Tensor, columns: CoupledColumns
) -> Tensor:
    """Return the coupled rows of edges [E, C], in the dtype of sums."""
    n_edges, n_coupled = len(senders), len(columns.columns)
    out = matrices.new_empty(n_edges, n_coupled)
    if out.numel():
        grid = triton.cdiv(n_edges, _EDGES), triton.cdiv(n_coupled, _COLUMNS)
        with torch.cuda.device_of(out):
            _coupled_rows_fwd_kernel[grid](
                node,
                matrices,
                senders,
                columns.columns,
                out,
                n_edges,
                node.shape[1],
                matrices.shape[1],
                n_coupled,
                WIDTH=columns.width,
                M=_EDGES,
                COLUMNS=_COLUMNS,
                num_warps=4,
            )
    return out


@triton.jit
def _node_gradient_kernel(
    coupled_ptr,
    matrix_ptr,
    order_ptr,
    sender_ptr_ptr,
    terms_ptr,
    out_ptr,
    n_node,
    n_matrix,
    n_coupled,
    n_terms,
    M: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Write gradients of nodes [S, n_node], from M edges at a time.

    Grid: (nodes, blocks of COLUMNS columns). The edges that node j sends are
    ``order[sender_ptr[j]:sender_ptr[j + 1]]``.
    """
    node = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < n_node
    first, last = tl.load(sender_ptr_ptr + node), tl.load(sender_ptr_ptr + node + 1)
    total = tl.zeros((M, COLUMNS), coupled_ptr.dtype.element_ty)
    for start in range(first, last, M):
        index = start + tl.arange(0, M)
        live = index < last
        edge = tl.load(order_ptr + index, live, other=0).to(tl.int64)[:, None]
        added = tl.zeros_like(total)
        for term in range(n_terms):
            pair = terms_ptr + (term * n_node + column) * 2
            coupled = tl.load(pair, inside, other=_FILLER)[None, :]
            matrix = tl.load(pair + 1, inside, other=_FILLER)[None, :]
            mask = live[:, None] & (coupled != _FILLER)
            z = tl.load(coupled_ptr + edge * n_coupled + coupled, mask, other=0.0)
            c = tl.load(matrix_ptr + edge * n_matrix + matrix, mask, other=0.0)
            added += z * c.to(total.dtype)
        total += added
    tl.store(out_ptr + node * n_node + column, tl.sum(total, 0), inside)


def node_gradient(
    coupled: Tensor, matrices: Tensor, senders: Tensor, n_nodes: int, columns: CoupledColumns
) -> Tensor:
    """Return gradients of nodes [S, node columns] from those of coupled rows [E, C]."""
    n_terms, n_columns, _ = columns.node_terms.shape
    out = coupled.new_empty(n_nodes, n_columns)
    order, pointers = by_sender(senders, n_nodes)
    if out.numel():
        with torch.cuda.device_of(out):
            _node_gradient_kernel[(n_nodes, triton.cdiv(n_columns, _COLUMNS))](
                coupled,
                matrices,
                order,
                pointers,
                columns.node_terms,
                out,
                n_columns,
                matrices.shape[1],
                coupled.shape[1],
                n_terms,
                M=_SENT,
                COLUMNS=_COLUMNS,
                num_warps=4,
            )
    return out


@triton.jit
def _matrix_gradient_kernel(
    coupled_ptr,
    node_ptr,
    sender_ptr,
    terms_ptr,
    out_ptr,
    n_edges,
    n_node,
    n_matrix,
    n_coupled,
    longest,
    M: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Write gradients of coupling matrices [n_edges, n_matrix].

    Grid: (tiles of M edges, blocks of COLUMNS elements).
    """
    edge = tl.program_id(0) * M + tl.arange(0, M)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    live, inside = edge < n_edges, column < n_matrix
    sender = tl.load(sender_ptr + edge, live, other=0)
    terms_ptr += column * 5
    x_start = tl.load(terms_ptr, inside, other=0)
    x_stride = tl.load(terms_ptr + 1, inside, other=0)
    z_start = tl.load(terms_ptr + 2, inside, other=0)
    z_stride = tl.load(terms_ptr + 3, inside, other=0)
    count = tl.load(terms_ptr + 4, inside, other=0)
    x_ptr = node_ptr + sender.to(tl.int64)[:, None] * n_node + x_start[None, :]
    z_ptr = coupled_ptr + edge.to(tl.int64)[:, None] * n_coupled + z_start[None, :]
    total = tl.zeros((M, COLUMNS), coupled_ptr.dtype.element_ty)
    for u in range(longest):
        mask = live[:, None] & (u < count)[None, :]
        x = tl.load(x_ptr + u * x_stride[None, :], mask, other=0.0)
        total += x.to(total.dtype) * tl.load(z_ptr + u * z_stride[None, :], mask, other=0.0)
    out_ptr += edge.to(tl.int64)[:, None] * n_matrix + column[None, :]
    tl.store(out_ptr, total, live[:, None] & inside[None, :])


def matrix_gradient(
    coupled: Tensor, node: Tensor, senders: Tensor, columns: CoupledColumns
) -> Tensor:
    """Return gradients of coupling matrices [E, P] from those of coupled rows [E, C]."""
    n_edges, n_matrix = len(senders), len(columns.matrix_terms)
    out = coupled.new_empty(n_edges, n_matrix)
    if out.numel():
        grid = triton.cdiv(n_edges, _EDGES), triton.cdiv(n_matrix, _COLUMNS)
        with torch.cuda.device_of(out):
            _matrix_gradient_kernel[grid](
                coupled,
                node,
                senders,
                columns.matrix_terms,
                out,
                n_edges,
                node.shape[1],
                n_matrix,
                coupled.shape[1],
                columns.longest,
                M=_EDGES,
                COLUMNS=_COLUMNS,
                num_warps=4,
            )
    return out
