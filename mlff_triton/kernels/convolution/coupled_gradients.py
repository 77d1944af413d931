"""Gradients of coupled rows of a fully connected convolution, of nodes and of coupling matrices.

With the gradients g of messages, which are those of their receivers, and the rows r of the plan,

    grad z_e[r] = sum_w W_e[r, w] g_e[w]

These are stored, for

    grad x_j[a]    = sum_e,r,m C_e[r, a, m] grad z_e[r, m]        over the edges that j sends
    grad C_e[a, m] = sum_u x_j[u, a] grad z_e[u, m]               over the rows of a path
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.convolution.edge_blocks import (
    EdgeInputs,
    PackedWeight,
    as_rows,
    constants,
    edge_weights,
    load_edges,
    load_hidden,
    load_output,
    output_gradients,
    part_of,
    zeros,
)
from mlff_triton.kernels.convolution.edge_messages import edges_per_program
from mlff_triton.kernels.convolution.gradient_blocks import splits_of
from mlff_triton.kernels.convolution.graphs import by_sender
from mlff_triton.kernels.convolution.plan import CHANNELS, FILLER, ROWS, Plan

_ROWS = tl.constexpr(ROWS)
_CHANNELS = tl.constexpr(CHANNELS)
_FILLER = tl.constexpr(FILLER)
_SENT = 8  # edges of a node at a time
_COLUMNS = 64  # of nodes or matrices per program


@triton.jit
def _write_coupled_terms(
    hidden,
    packed,
    grad_ptr,
    out_ptr,
    edges,
    output,
    n_columns,
    n_out,
    n_coupled,
    D: tl.constexpr,
    K0: tl.constexpr,
    K1: tl.constexpr,
    PRECISION: tl.constexpr,
    LOSS: tl.constexpr,
    ACC: tl.constexpr,
):
    """Write the gradients of the coupled rows of an output."""
    _, _, n_blocks, block, column, count, coupled = output
    edge, live, _, _ = edges
    for b in range(tl.program_id(1), n_blocks, tl.num_programs(1)):
        sums = zeros(edge.shape[0], _ROWS, D, ACC)
        for part in range(tl.cdiv(count, _CHANNELS)):
            first, start, rest = part_of(block, n_blocks, column, count, part, D)
            weights = edge_weights(
                hidden, packed, first + b, n_columns, K0, K1, PRECISION, LOSS, ACC
            )
            weights = as_rows(weights)  # [M, ROWS, CHANNELS]
            grads = output_gradients(grad_ptr, n_out, edges, start, rest, D, ACC)
            added = ()
            for m in tl.static_range(D):
                added += (sums[m] + tl.sum(weights * grads[m][:, None, :], 2),)  # type: ignore[assignment]
            sums = added
        row = b * _ROWS + tl.arange(0, _ROWS)[None, :]
        pointers = out_ptr + edge[:, None] * n_coupled + coupled + row * D
        for m in tl.static_range(D):
            tl.store(pointers + m, sums[m], live[:, None])


@triton.jit
def _coupled_gradient_kernel(
    inputs,
    sizes,
    packed,
    outputs_ptr,
    grad_ptr,
    out_ptr,
    n_columns,
    n_out,
    n_coupled,
    n_outputs,
    M: tl.constexpr,
    K0: tl.constexpr,
    K1: tl.constexpr,
    COMPONENTS: tl.constexpr,
    PRECISION: tl.constexpr,
    LOSS: tl.constexpr,
    ACC: tl.constexpr,
):
    """Write gradients of coupled rows [n_edges, n_coupled].

    Grid: (tiles of M edges with all outputs each, splits of the blocks of rows).
    """
    tile, index = tl.program_id(0) // n_outputs, tl.program_id(0) % n_outputs
    output = load_output(outputs_ptr, index)
    edges = load_edges(inputs, sizes, tile * M, M)
    hidden = load_hidden(inputs, sizes, edges, K0, K1, PRECISION)
    for each in tl.static_range(len(COMPONENTS)):
        if output[0] == COMPONENTS[each]:
            _write_coupled_terms(
                hidden,
                packed,
                grad_ptr,
                out_ptr,
                edges,
                output,
                n_columns,
                n_out,
                n_coupled,
                COMPONENTS[each],
                K0,
                K1,
                PRECISION,
                LOSS,
                ACC,
            )


def coupled_gradient(grad: Tensor, inputs: EdgeInputs, packed: PackedWeight, plan: Plan) -> Tensor:
    """Return gradients of coupled rows, [E, n_coupled]."""
    n_edges = len(inputs.senders)
    out = grad.new_empty(n_edges, plan.n_coupled)
    options = constants(packed, plan)
    del options["WIDTH"]
    block, launch = edges_per_program(packed)
    n_outputs, tiles = len(plan.outputs), triton.cdiv(n_edges, block)
    splits = splits_of(len(plan.blocks), n_outputs * tiles, grad)
    if out.numel():
        with torch.cuda.device_of(grad):
            _coupled_gradient_kernel[(tiles * n_outputs, splits)](
                tuple(inputs),
                inputs.sizes,
                packed.tensors,
                plan.outputs,
                grad,
                out,
                len(packed.bias),
                grad.shape[1],
                plan.n_coupled,
                n_outputs,
                M=block,
                **options,
                **launch,
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


def node_gradient(coupled: Tensor, inputs: EdgeInputs, plan: Plan) -> Tensor:
    """Return gradients of nodes [S, node columns] from those of coupled rows."""
    n_nodes, n_columns = inputs.node.shape
    out = coupled.new_empty(n_nodes, n_columns)
    order, pointers = by_sender(inputs.senders, n_nodes)
    if out.numel():
        with torch.cuda.device_of(out):
            _node_gradient_kernel[(n_nodes, triton.cdiv(n_columns, _COLUMNS))](
                coupled,
                inputs.matrices,
                order,
                pointers,
                plan.node_terms,
                out,
                n_columns,
                inputs.matrices.shape[1],
                plan.n_coupled,
                len(plan.node_terms),
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


def matrix_gradient(coupled: Tensor, inputs: EdgeInputs, plan: Plan) -> Tensor:
    """Return gradients of coupling matrices [E, P] from those of coupled rows."""
    n_edges, n_node, n_matrix, _ = inputs.sizes
    out = coupled.new_empty(n_edges, n_matrix)
    edges = 16
    if out.numel():
        with torch.cuda.device_of(out):
            _matrix_gradient_kernel[(triton.cdiv(n_edges, edges), triton.cdiv(n_matrix, _COLUMNS))](
                coupled,
                inputs.node,
                inputs.senders,
                plan.matrix_terms,
                out,
                n_edges,
                n_node,
                n_matrix,
                plan.n_coupled,
                plan.longest,
                M=edges,
                COLUMNS=_COLUMNS,
                num_warps=4,
            )
    return out
