"""Sums of messages of a convolution that keeps the channels of nodes, and gradients of nodes.

    y_i[u, m]      = sum_e w_e[u] z_e[u, m]                       over the edges that i receives
    grad x_j[u, a] = sum_e w_e[u] sum_m C_e[a, m] g_e[u, m]       over the edges that j sends

A program sums the edges of one node, several at a time, for a block of channels. Messages are never
stored.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.convolution.channel_blocks import (
    Weights,
    channel_gradients,
    channel_weights,
    coupled_channels,
    load_group,
    load_source,
    matrix_element,
    node_channels,
    weight_arguments,
    weight_constants,
)
from mlff_triton.kernels.convolution.channel_plan import ChannelPlan
from mlff_triton.kernels.convolution.edge_blocks import EdgeInputs, zeros
from mlff_triton.kernels.convolution.graphs import mean_of, output_buffer
from mlff_triton.kernels.convolution.plan import BLOCK
from mlff_triton.kernels.convolution.types import TensorProduct

_BLOCK = tl.constexpr(BLOCK)
_EDGES = 16  # of a node, at a time


@triton.jit
def _write_sums(
    inputs,
    sizes,
    packed,
    table,
    groups_ptr,
    out_ptr,
    node,
    first,
    last,
    job,
    n_columns: tl.constexpr,
    n_out,
    D: tl.constexpr,
    M: tl.constexpr,
    WIDTH: tl.constexpr,
    K0: tl.constexpr,
    K1: tl.constexpr,
    PRECISION: tl.constexpr,
    LOSS: tl.constexpr,
    ACC: tl.constexpr,
    TABULATED: tl.constexpr,
    MEAN: tl.constexpr,
):
    """Write sums or means of a block of channels over the edges from first to last."""
    group_start, n_groups, block = job
    sums = zeros(M, _BLOCK, D, ACC)
    for index in range(group_start, group_start + n_groups):
        group = load_group(groups_ptr, index)
        for start in range(first, last, M):
            edge = start + tl.arange(0, M)
            live = edge < last
            sender = tl.load(inputs[3] + edge, live, other=0).to(tl.int64)
            edges = edge.to(tl.int64), live, sender, sender
            source = load_source(inputs, sizes, table, edges, K0, K1, PRECISION, TABULATED)
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
            added = ()
            for m in tl.static_range(D):
                added += (sums[m] + weights * z[m],)  # type: ignore[assignment]
            sums = added
    group = load_group(groups_ptr, group_start)
    channel = block * _BLOCK + tl.arange(0, _BLOCK)
    pointers = out_ptr + node * n_out + group[4] + channel * D
    for m in tl.static_range(D):
        total = tl.sum(sums[m], 0)
        if MEAN:
            total = mean_of(total, last - first)
        tl.store(pointers + m, total.to(out_ptr.dtype.element_ty), channel < group[5])


@triton.jit
def _channel_sums_fwd_kernel(
    inputs,
    sizes,
    packed,
    table,
    groups_ptr,
    jobs_ptr,
    row_ptr_ptr,
    out_ptr,
    n_columns: tl.constexpr,
    n_out,
    M: tl.constexpr,
    COMPONENTS: tl.constexpr,
    WIDTH: tl.constexpr,
    K0: tl.constexpr,
    K1: tl.constexpr,
    PRECISION: tl.constexpr,
    LOSS: tl.constexpr,
    ACC: tl.constexpr,
    TABULATED: tl.constexpr,
    MEAN: tl.constexpr,
):
    """Write sums or means [N, n_out] of receivers. Grid: (receivers, jobs of the outputs)."""
    node = tl.program_id(0).to(tl.int64)
    first, last = tl.load(row_ptr_ptr + node), tl.load(row_ptr_ptr + node + 1)
    jobs_ptr += tl.program_id(1) * 3
    job = tl.load(jobs_ptr), tl.load(jobs_ptr + 1), tl.load(jobs_ptr + 2)
    components = load_group(groups_ptr, job[0])[0]
    for each in tl.static_range(len(COMPONENTS)):
        if components == COMPONENTS[each]:
            _write_sums(
                inputs,
                sizes,
                packed,
                table,
                groups_ptr,
                out_ptr,
                node,
                first,
                last,
                job,
                n_columns,
                n_out,
                COMPONENTS[each],
                M,
                WIDTH,
                K0,
                K1,
                PRECISION,
                LOSS,
                ACC,
                TABULATED,
                MEAN,
            )


def channel_sums(
    inputs: EdgeInputs,
    weights: Weights,
    plan: ChannelPlan,
    row_ptr: Tensor,
    product: TensorProduct,
    reduce: str,
) -> Tensor:
    """Return the sums or means of messages [N, output columns], in the dtype of nodes."""
    n_nodes = len(row_ptr) - 1
    out = output_buffer(inputs.node, n_nodes, product, inputs.node.dtype)
    packed, table, n_columns = weight_arguments(weights)
    if n_nodes and len(plan.output_jobs):
        with torch.cuda.device_of(out):
            _channel_sums_fwd_kernel[(n_nodes, len(plan.output_jobs))](
                tuple(inputs),
                inputs.sizes,
                packed,
                table,
                plan.groups,
                plan.output_jobs,
                row_ptr,
                out,
                n_columns,
                out.shape[1],
                M=_EDGES,
                **weight_constants(weights, plan),
                MEAN=reduce == "mean",
                num_warps=4,
                num_stages=1,
            )
    return out


@triton.jit
def _add_node_terms(
    sums,
    inputs,
    sizes,
    packed,
    table,
    grad_ptr,
    edges,
    group,
    block,
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
    """Add what some edges and a group contribute to the gradients of a node's components."""
    source = load_source(inputs, sizes, table, edges, K0, K1, PRECISION, TABULATED)
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
    grads = channel_gradients(grad_ptr, n_out, group, block, edges, D, ACC)
    added = ()
    for a in tl.static_range(WIDTH):
        total = grads[0] * matrix_element(inputs, sizes, group, edges, a, 0, D, ACC)
        for m in tl.static_range(1, D):
            total += grads[m] * matrix_element(inputs, sizes, group, edges, a, m, D, ACC)
        added += (sums[a] + weights * total,)  # type: ignore[assignment]
    return added


@triton.jit
def _channel_node_gradient_kernel(
    inputs,
    sizes,
    packed,
    table,
    groups_ptr,
    jobs_ptr,
    order_ptr,
    grad_ptr,
    sent_ptr,
    sender_ptr_ptr,
    out_ptr,
    n_columns: tl.constexpr,
    n_out,
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
    """Write gradients of nodes [S, n_node]. Grid: (nodes, jobs of the nodes' irreps).

    The edges that node j sends are ``sent[sender_ptr[j]:sender_ptr[j + 1]]``.
    """
    node = tl.program_id(0).to(tl.int64)
    first, last = tl.load(sender_ptr_ptr + node), tl.load(sender_ptr_ptr + node + 1)
    jobs_ptr += tl.program_id(1) * 3
    group_start, n_groups, block = tl.load(jobs_ptr), tl.load(jobs_ptr + 1), tl.load(jobs_ptr + 2)
    sums = zeros(M, _BLOCK, WIDTH, ACC)
    for index in range(group_start, group_start + n_groups):
        group = load_group(groups_ptr, tl.load(order_ptr + index))
        for start in range(first, last, M):
            place = start + tl.arange(0, M)
            live = place < last
            edge = tl.load(sent_ptr + place, live, other=0).to(tl.int64)
            receiver = tl.load(inputs[4] + edge, live, other=0).to(tl.int64)
            edges = edge, live, receiver, receiver
            for each in tl.static_range(len(COMPONENTS)):
                if group[0] == COMPONENTS[each]:
                    sums = _add_node_terms(
                        sums,
                        inputs,
                        sizes,
                        packed,
                        table,
                        grad_ptr,
                        edges,
                        group,
                        block,
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
    group = load_group(groups_ptr, tl.load(order_ptr + group_start))
    channel = block * _BLOCK + tl.arange(0, _BLOCK)
    pointers = out_ptr + node * sizes[1] + group[1] + channel * group[2]
    for a in tl.static_range(WIDTH):
        tl.store(pointers + a, tl.sum(sums[a], 0), (channel < group[5]) & (a < group[2]))


def channel_node_gradient(
    grad: Tensor, inputs: EdgeInputs, weights: Weights, plan: ChannelPlan
) -> Tensor:
    """Return gradients of nodes [S, node columns], from those of the sums of receivers."""
    out = grad.new_zeros(inputs.node.shape)  # for irreps without paths
    sent, pointers = inputs.by_sender()
    packed, table, n_columns = weight_arguments(weights)
    if len(out) and len(plan.node_jobs):
        with torch.cuda.device_of(out):
            _channel_node_gradient_kernel[(len(out), len(plan.node_jobs))](
                tuple(inputs),
                inputs.sizes,
                packed,
                table,
                plan.groups,
                plan.node_jobs,
                plan.order,
                grad,
                sent,
                pointers,
                out,
                n_columns,
                grad.shape[1],
                M=_EDGES,
                **weight_constants(weights, plan),
                num_warps=4,
                num_stages=1,
            )
    return out
