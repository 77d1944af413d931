"""Gradients of hidden values and of weights of a fully connected convolution.

With the gradients g of messages, which are those of their receivers, and the rows r of the plan,

    grad hidden_e = sum_rw (sum_m z_e[r, m] g_e[w, m]) weight[:, rw]
    grad weight   = sum_e hidden_e (sum_m z_e[r, m] g_e[w, m])

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
    constants,
    coupled_rows,
    load_edges,
    load_output,
    output_gradients,
    part_of,
    weight_gradients,
)
from mlff_triton.kernels.convolution.gradient_blocks import (
    add_hidden_gradient,
    add_weight_gradient,
    splits_of,
    store_hidden_gradient,
    store_weight_gradient,
    zero_weight_gradient,
)
from mlff_triton.kernels.convolution.plan import CHANNELS, ROWS, Plan

_ROWS = tl.constexpr(ROWS)
_CHANNELS = tl.constexpr(CHANNELS)
_EDGES = 64  # per program


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
    block, column, count = part_of(block, n_blocks, column, count, part, D)
    grads = output_gradients(grad_ptr, n_out, edges, column, count, D, ACC)
    for b in range(n_blocks):
        z = coupled_rows(inputs, sizes, rows_ptr, edges, row + b * _ROWS, D, WIDTH, ACC)
        gradient = weight_gradients(z, grads, D)  # [M, BLOCK]
        sums = add_hidden_gradient(
            sums, gradient, packed, block + b, n_columns, K0, K1, PRECISION, ACC
        )
    return sums


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
    block = _EDGES // 2 if grad.dtype == torch.float64 else _EDGES
    tiles = triton.cdiv(n_edges, block)
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
                M=block,
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
    block, column, count = part_of(block, n_blocks, column, count, part, D)
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
