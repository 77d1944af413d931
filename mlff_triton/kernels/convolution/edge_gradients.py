"""Gradients of the messages of a fully connected convolution.

With the gradients g of messages, which are those of their receivers, and the rows r of the plan,

    grad hidden_e = sum_rw (sum_m z_e[r, m] g_e[w, m]) weight[:, rw]
    grad weight   = sum_e hidden_e (sum_m z_e[r, m] g_e[w, m])
    grad z_e[r]   = sum_w W_e[r, w] g_e[w]

Gradients of the coupled rows z are stored. Those of nodes and of coupling matrices are

    grad x_j[a]    = sum_e,r,m C_e[r, a, m] grad z_e[r, m]        over the edges that j sends
    grad C_e[a, m] = sum_u x_j[u, a] grad z_e[u, m]               over the rows of a path

Gradients of weights are summed by several programs, which take tiles of edges in turns, and those
of hidden values by programs that take outputs in turns. A second pass adds their sums, in order.
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
    coupled_rows,
    edge_weights,
    load_edges,
    load_hidden,
    load_output,
    output_gradients,
    weight_gradients,
    zeros,
)
from mlff_triton.kernels.convolution.edge_messages import edges_per_program
from mlff_triton.kernels.convolution.gradient_blocks import (
    add_hidden_gradient,
    add_weight_gradient,
    splits_of,
    store_hidden_gradient,
    store_weight_gradient,
    zero_weight_gradient,
)
from mlff_triton.kernels.convolution.plan import BLOCK, CHANNELS, FILLER, ROWS, Plan

_ROWS = tl.constexpr(ROWS)
_CHANNELS = tl.constexpr(CHANNELS)
_BLOCK = tl.constexpr(BLOCK)
_FILLER = tl.constexpr(FILLER)
_EDGES = 64  # per program
_SENT = 8  # edges of a node at a time
_COLUMNS = 64  # of nodes or matrices per program


@triton.jit
def _add_hidden_terms(
    sums,
    inputs,
    sizes,
    packed,
    rows_ptr,
    grad_ptr,
    edges,
    output,
    part,
    n_columns,
    n_out,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    K0: tl.constexpr,
    K1: tl.constexpr,
    PRECISION: tl.constexpr,
    ACC: tl.constexpr,
):
    """Add what a part of an output's channels contributes to gradients [M, K0] and [M, K1]."""
    _, row, n_blocks, block, column, count, _ = output
    block, column, count = _part_of(block, n_blocks, column, count, part, D)
    grads = output_gradients(grad_ptr, n_out, edges, column, count, D, ACC)
    for b in range(n_blocks):
        z = coupled_rows(inputs, sizes, rows_ptr, edges, row + b * _ROWS, D, WIDTH, ACC)
        gradient = weight_gradients(z, grads, D)  # [M, BLOCK]
        sums = add_hidden_gradient(
            sums, gradient, packed, block + b, n_columns, K0, K1, PRECISION, ACC
        )
    return sums


@triton.jit
def _part_of(block, n_blocks, column, count, part, D: tl.constexpr):
    """Return first block, first column and number of the channels from a part of an output on."""
    start = part * _CHANNELS
    return block + part * n_blocks, column + start * D, count - start


@triton.jit
def _hidden_gradient_kernel(
    inputs,
    sizes,
    packed,
    rows_ptr,
    outputs_ptr,
    jobs_ptr,
    grad_ptr,
    out_ptr,
    n_columns,
    n_out,
    n_jobs,
    M: tl.constexpr,
    K0: tl.constexpr,
    K1: tl.constexpr,
    COMPONENTS: tl.constexpr,
    WIDTH: tl.constexpr,
    PRECISION: tl.constexpr,
    ACC: tl.constexpr,
):
    """Write parts of gradients [splits, n_edges, n_hidden]. Grid: (tiles of M edges, splits)."""
    edges = load_edges(inputs, sizes, tl.program_id(0) * M, M)
    sums = tl.zeros((M, K0), ACC), tl.zeros((M, K1 if K1 > 0 else 16), ACC)
    for job in range(tl.program_id(1), n_jobs, tl.num_programs(1)):
        output = load_output(outputs_ptr, tl.load(jobs_ptr + job * 2))
        part = tl.load(jobs_ptr + job * 2 + 1)
        for each in tl.static_range(len(COMPONENTS)):
            if output[0] == COMPONENTS[each]:
                sums = _add_hidden_terms(
                    sums,
                    inputs,
                    sizes,
                    packed,
                    rows_ptr,
                    grad_ptr,
                    edges,
                    output,
                    part,
                    n_columns,
                    n_out,
                    COMPONENTS[each],
                    WIDTH,
                    K0,
                    K1,
                    PRECISION,
                    ACC,
                )

    store_hidden_gradient(sums, out_ptr, edges, tl.program_id(1), sizes[0], sizes[3], K0, K1)


def hidden_gradient(grad: Tensor, inputs: EdgeInputs, packed: PackedWeight, plan: Plan) -> Tensor:
    """Return gradients [E, H] of hidden values, from those of the sums of receivers."""
    n_edges, _, _, n_hidden = inputs.sizes
    tiles = triton.cdiv(n_edges, _EDGES)
    splits = splits_of(len(plan.jobs), tiles, grad)
    out = grad.new_empty(splits, n_edges, n_hidden)
    options = constants(packed, plan)
    del options["LOSS"]
    if out.numel():
        with torch.cuda.device_of(grad):
            _hidden_gradient_kernel[(tiles, splits)](
                tuple(inputs),
                inputs.sizes,
                packed.tensors,
                plan.rows,
                plan.outputs,
                plan.jobs,
                grad,
                out,
                len(packed.bias),
                grad.shape[1],
                len(plan.jobs),
                M=_EDGES,
                **options,
                num_warps=8,
                num_stages=1,
            )
    return out.sum(0)


@triton.jit
def _write_weight_terms(
    inputs,
    sizes,
    rows_ptr,
    grad_ptr,
    out_ptr,
    bias_ptr,
    output,
    part,
    b,
    n_columns,
    n_out,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    M: tl.constexpr,
    K0: tl.constexpr,
    K1: tl.constexpr,
    PRECISION: tl.constexpr,
    ACC: tl.constexpr,
):
    """Write the gradients of a block of weights and of its bias."""
    _, row, n_blocks, block, column, count, _ = output
    block, column, count = _part_of(block, n_blocks, column, count, part, D)
    sums = zero_weight_gradient(K0, K1, ACC)
    for start in range(tl.program_id(1) * M, sizes[0], tl.num_programs(1) * M):
        edges = load_edges(inputs, sizes, start, M)
        z = coupled_rows(inputs, sizes, rows_ptr, edges, row + b * _ROWS, D, WIDTH, ACC)
        grads = output_gradients(grad_ptr, n_out, edges, column, count, D, ACC)
        gradient = weight_gradients(z, grads, D)  # [M, BLOCK]
        sums = add_weight_gradient(sums, gradient, inputs, sizes, edges, K0, K1, PRECISION, ACC)
    store_weight_gradient(sums, out_ptr, bias_ptr, block + b, sizes[3], n_columns, K0, K1)


@triton.jit
def _weight_gradient_kernel(
    inputs,
    sizes,
    rows_ptr,
    outputs_ptr,
    blocks_ptr,
    grad_ptr,
    out_ptr,
    bias_ptr,
    n_columns,
    n_out,
    M: tl.constexpr,
    K0: tl.constexpr,
    K1: tl.constexpr,
    COMPONENTS: tl.constexpr,
    WIDTH: tl.constexpr,
    PRECISION: tl.constexpr,
    ACC: tl.constexpr,
):
    """Write parts of gradients, [splits, n_hidden, n_columns], and of the bias [splits, n_columns].

    Grid: (blocks of the plan, splits of the edges).
    """
    blocks_ptr += tl.program_id(0) * 3
    output = load_output(outputs_ptr, tl.load(blocks_ptr))
    part, b = tl.load(blocks_ptr + 1), tl.load(blocks_ptr + 2)
    for each in tl.static_range(len(COMPONENTS)):
        if output[0] == COMPONENTS[each]:
            _write_weight_terms(
                inputs,
                sizes,
                rows_ptr,
                grad_ptr,
                out_ptr,
                bias_ptr,
                output,
                part,
                b,
                n_columns,
                n_out,
                COMPONENTS[each],
                WIDTH,
                M,
                K0,
                K1,
                PRECISION,
                ACC,
            )


def weight_gradient(
    grad: Tensor, inputs: EdgeInputs, packed: PackedWeight, plan: Plan
) -> tuple[Tensor, Tensor]:
    """Return gradients [H, weights] and [weights] of weight and bias."""
    n_edges, _, _, n_hidden = inputs.sizes
    n_columns, n_blocks = len(packed.bias), len(plan.blocks)
    splits = splits_of(triton.cdiv(n_edges, _EDGES), n_blocks, grad)
    out = grad.new_empty(splits, n_hidden, n_columns)
    bias = grad.new_empty(splits, n_columns)
    options = constants(packed, plan)
    del options["LOSS"]
    if out.numel():
        with torch.cuda.device_of(grad):
            _weight_gradient_kernel[(n_blocks, splits)](
                tuple(inputs),
                inputs.sizes,
                plan.rows,
                plan.outputs,
                plan.blocks,
                grad,
                out,
                bias,
                n_columns,
                grad.shape[1],
                M=_EDGES,
                **options,
                num_warps=8,
                num_stages=1,
            )
    return out.sum(0).index_select(1, plan.position), bias.sum(0).index_select(0, plan.position)


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
    for b in range(tl.program_id(2), n_blocks, tl.num_programs(2)):
        sums = zeros(edge.shape[0], _ROWS, D, ACC)
        for part in range(tl.cdiv(count, _CHANNELS)):
            first, start, rest = _part_of(block, n_blocks, column, count, part, D)
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
    M: tl.constexpr,
    K0: tl.constexpr,
    K1: tl.constexpr,
    COMPONENTS: tl.constexpr,
    PRECISION: tl.constexpr,
    LOSS: tl.constexpr,
    ACC: tl.constexpr,
):
    """Write gradients of coupled rows [n_edges, n_coupled].

    Grid: (outputs, tiles of M edges, splits of the blocks of rows).
    """
    output = load_output(outputs_ptr, tl.program_id(0))
    edges = load_edges(inputs, sizes, tl.program_id(1) * M, M)
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
            _coupled_gradient_kernel[(n_outputs, tiles, splits)](
                tuple(inputs),
                inputs.sizes,
                packed.tensors,
                plan.outputs,
                grad,
                out,
                len(packed.bias),
                grad.shape[1],
                plan.n_coupled,
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
    order, pointers = inputs.by_sender()
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
