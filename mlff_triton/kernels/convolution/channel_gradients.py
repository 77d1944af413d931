"""Gradients of edges and weights of a convolution that keeps the channels of nodes.

With the gradients g of messages, which are those of their receivers,

    grad w_e[u]    = sum_m z_e[u, m] g_e[u, m]
    grad C_e[a, m] = sum_u x_j[u, a] w_e[u] g_e[u, m]
    grad hidden_e  = sum_u grad w_e[u] weight[:, u]
    grad weight    = sum_e hidden_e grad w_e
    grad d_e       = sum_u grad w_e[u] w'_e[u]

A program computes all gradients of a tile of edges. Gradients of weights are summed by several
programs, which take tiles of edges in turns; a second pass adds their sums, in order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.convolution.channel_blocks import (
    RadialTable,
    Weights,
    channel_gradients,
    channel_slopes,
    channel_weights,
    coupled_channels,
    load_group,
    load_source,
    node_channels,
    weight_arguments,
    weight_constants,
)
from mlff_triton.kernels.convolution.channel_plan import ChannelPlan
from mlff_triton.kernels.convolution.edge_blocks import (
    EdgeInputs,
    PackedWeight,
    load_edges,
)
from mlff_triton.kernels.convolution.gradient_blocks import (
    add_hidden_gradient,
    add_weight_gradient,
    splits_of,
    store_hidden_gradient,
    store_weight_gradient,
    zero_weight_gradient,
)
from mlff_triton.kernels.convolution.plan import BLOCK

_BLOCK = tl.constexpr(BLOCK)
_EDGES = 32  # per program


@triton.jit
def _add_edge_terms(
    sums,
    source,
    inputs,
    sizes,
    packed,
    table,
    grad_ptr,
    matrices_ptr,
    edges,
    group,
    n_columns: tl.constexpr,
    n_out,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    K0: tl.constexpr,
    K1: tl.constexpr,
    PRECISION: tl.constexpr,
    LOSS: tl.constexpr,
    ACC: tl.constexpr,
    TABULATED: tl.constexpr,
):
    """Add what a group contributes to gradients of sources; write those of its matrices."""
    first, second = sums
    edge, live, _, _ = edges
    elements = ()
    for _ in tl.static_range(WIDTH * D):
        elements += (tl.zeros((edge.shape[0],), ACC),)  # type: ignore[assignment]
    for block in range(tl.cdiv(group[5], _BLOCK)):
        weights = channel_weights(
            source,
            packed,
            table,
            group,
            block,
            edges,
            n_columns,
            K0,
            K1,
            PRECISION,
            LOSS,
            ACC,
            TABULATED,
        )
        x = node_channels(inputs, sizes, group, block, edges, WIDTH, ACC)
        z = coupled_channels(inputs, sizes, group, x, edges, D, WIDTH, ACC)
        grads = channel_gradients(grad_ptr, n_out, group, block, edges, D, ACC)
        gradient = z[0] * grads[0]
        for m in tl.static_range(1, D):
            gradient += z[m] * grads[m]
        if TABULATED:
            slopes = channel_slopes(source, table, group, block, edges, n_columns)
            first += tl.sum(gradient * slopes, 1, keep_dims=True)
        else:
            first, second = add_hidden_gradient(
                (first, second),
                gradient,
                packed,
                group[6] + block,
                n_columns,
                K0,
                K1,
                PRECISION,
                ACC,
            )
        added = ()
        for a in tl.static_range(WIDTH):
            for m in tl.static_range(D):
                element = elements[a * D + m] + tl.sum(x[a] * weights * grads[m], 1)
                added += (element,)  # type: ignore[assignment]
        elements = added
    pointers = matrices_ptr + edge * sizes[2] + group[3]
    for a in tl.static_range(WIDTH):
        for m in tl.static_range(D):
            tl.store(pointers + a * D + m, elements[a * D + m], live & (a < group[2]))
    return first, second


@triton.jit
def _channel_edge_gradient_kernel(
    inputs,
    sizes,
    packed,
    table,
    groups_ptr,
    grad_ptr,
    matrices_ptr,
    out_ptr,
    n_columns: tl.constexpr,
    n_out,
    n_groups,
    M: tl.constexpr,
    COMPONENTS: tl.constexpr,
    WIDTH: tl.constexpr,
    K0: tl.constexpr,
    K1: tl.constexpr,
    PRECISION: tl.constexpr,
    LOSS: tl.constexpr,
    ACC: tl.constexpr,
    TABULATED: tl.constexpr,
):
    """Write gradients of matrices [n_edges, n_matrix], and parts of those of sources.

    Sources are hidden values, with parts [splits, n_edges, n_hidden], or distances [splits,
    n_edges]. Grid: (tiles of M edges, splits).
    """
    edges = load_edges(inputs, sizes, tl.program_id(0) * M, M)
    source = load_source(inputs, sizes, table, edges, K0, K1, PRECISION, TABULATED)
    sums = tl.zeros((M, 1 if TABULATED else K0), ACC), tl.zeros((M, K1 if K1 > 0 else 16), ACC)
    for index in range(tl.program_id(1), n_groups, tl.num_programs(1)):
        group = load_group(groups_ptr, index)
        for each in tl.static_range(len(COMPONENTS)):
            if group[0] == COMPONENTS[each]:
                sums = _add_edge_terms(
                    sums,
                    source,
                    inputs,
                    sizes,
                    packed,
                    table,
                    grad_ptr,
                    matrices_ptr,
                    edges,
                    group,
                    n_columns,
                    n_out,
                    COMPONENTS[each],
                    WIDTH,
                    K0,
                    K1,
                    PRECISION,
                    LOSS,
                    ACC,
                    TABULATED,
                )

    split = tl.program_id(1)
    if TABULATED:
        row = split.to(tl.int64) * sizes[0] + edges[0]
        tl.store(out_ptr + row[:, None], sums[0], edges[1][:, None])
    else:
        store_hidden_gradient(sums, out_ptr, edges, split, sizes[0], sizes[3], K0, K1)


def channel_edge_gradient(
    grad: Tensor, inputs: EdgeInputs, weights: Weights, plan: ChannelPlan
) -> tuple[Tensor, Tensor]:
    """Return gradients of matrices [E, P], and of hidden values [E, H] or distances [E]."""
    n_edges, _, n_matrix, n_hidden = inputs.sizes
    tiles = triton.cdiv(n_edges, _EDGES)
    splits = splits_of(len(plan.groups), tiles, grad)
    matrices = grad.new_empty(n_edges, n_matrix)
    out = grad.new_empty(splits, n_edges, n_hidden)
    packed, table, n_columns = weight_arguments(weights)
    if n_edges:
        with torch.cuda.device_of(grad):
            _channel_edge_gradient_kernel[(tiles, splits)](
                tuple(inputs),
                inputs.sizes,
                packed,
                table,
                plan.groups,
                grad,
                matrices,
                out,
                n_columns,
                grad.shape[1],
                len(plan.groups),
                M=_EDGES,
                **weight_constants(weights, plan),
                num_warps=4,
                num_stages=1,
            )
    total = out.sum(0)
    return matrices, total[:, 0] if isinstance(weights, RadialTable) else total


@triton.jit
def _write_weight_terms(
    inputs,
    sizes,
    grad_ptr,
    out_ptr,
    bias_ptr,
    group,
    block,
    n_columns,
    n_out,
    D: tl.constexpr,
    M: tl.constexpr,
    K0: tl.constexpr,
    K1: tl.constexpr,
    WIDTH: tl.constexpr,
    PRECISION: tl.constexpr,
    ACC: tl.constexpr,
):
    """Write the gradients of a block of weights and of its bias."""
    sums = zero_weight_gradient(K0, K1, ACC)
    for start in range(tl.program_id(1) * M, sizes[0], tl.num_programs(1) * M):
        edges = load_edges(inputs, sizes, start, M)
        x = node_channels(inputs, sizes, group, block, edges, WIDTH, ACC)
        z = coupled_channels(inputs, sizes, group, x, edges, D, WIDTH, ACC)
        grads = channel_gradients(grad_ptr, n_out, group, block, edges, D, ACC)
        gradient = z[0] * grads[0]
        for m in tl.static_range(1, D):
            gradient += z[m] * grads[m]
        sums = add_weight_gradient(sums, gradient, inputs, sizes, edges, K0, K1, PRECISION, ACC)
    block += group[6]
    store_weight_gradient(sums, out_ptr, bias_ptr, block, sizes[3], n_columns, K0, K1)


@triton.jit
def _channel_weight_gradient_kernel(
    inputs,
    sizes,
    groups_ptr,
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
    blocks_ptr += tl.program_id(0) * 2
    group, block = load_group(groups_ptr, tl.load(blocks_ptr)), tl.load(blocks_ptr + 1)
    for each in tl.static_range(len(COMPONENTS)):
        if group[0] == COMPONENTS[each]:
            _write_weight_terms(
                inputs,
                sizes,
                grad_ptr,
                out_ptr,
                bias_ptr,
                group,
                block,
                n_columns,
                n_out,
                COMPONENTS[each],
                M,
                K0,
                K1,
                WIDTH,
                PRECISION,
                ACC,
            )


def channel_weight_gradient(
    grad: Tensor, inputs: EdgeInputs, packed: PackedWeight, plan: ChannelPlan
) -> tuple[Tensor, Tensor]:
    """Return gradients [H, weights] and [weights] of weight and bias."""
    n_edges, _, _, n_hidden = inputs.sizes
    n_columns, n_blocks = len(packed.bias), len(plan.blocks)
    splits = splits_of(triton.cdiv(n_edges, _EDGES), n_blocks, grad)
    out = grad.new_empty(splits, n_hidden, n_columns)
    bias = grad.new_empty(splits, n_columns)
    constants = weight_constants(packed, plan)
    wanted = ("COMPONENTS", "WIDTH", "K0", "K1", "PRECISION", "ACC")
    if out.numel():
        with torch.cuda.device_of(grad):
            _channel_weight_gradient_kernel[(n_blocks, splits)](
                tuple(inputs),
                inputs.sizes,
                plan.groups,
                plan.blocks,
                grad,
                out,
                bias,
                n_columns,
                grad.shape[1],
                M=_EDGES,
                **{name: constants[name] for name in wanted},
                num_warps=4,
                num_stages=1,
            )
    return out.sum(0).index_select(1, plan.position), bias.sum(0).index_select(0, plan.position)
