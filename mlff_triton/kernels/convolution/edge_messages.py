"""Messages of edges of a fully connected convolution.

    y_e[w, m] = sum_r W_e[r, w] z_e[r, m]        W_e = hidden_e weight + bias

with the rows r of `mlff_triton.kernels.convolution.plan`. Weights are computed for a tile of edges
and a block of rows and channels, multiplied by the coupled rows z at once, and discarded.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common.hardware import has_large_memory
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
    zeros,
)
from mlff_triton.kernels.convolution.graphs import output_buffer
from mlff_triton.kernels.convolution.plan import CHANNELS, ROWS, Plan
from mlff_triton.kernels.convolution.types import TensorProduct

_ROWS = tl.constexpr(ROWS)
_CHANNELS = tl.constexpr(CHANNELS)


@triton.jit
def _write_messages(
    hidden,
    inputs,
    sizes,
    packed,
    rows_ptr,
    out_ptr,
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
    LOSS: tl.constexpr,
    ACC: tl.constexpr,
):
    """Write the messages of edges for one block of an output's channels."""
    _, row, n_blocks, block, column, count = output
    edge, live, _ = edges
    block += part * n_blocks
    sums = zeros(edge.shape[0], _CHANNELS, D, ACC)
    for b in range(n_blocks):
        weights = edge_weights(hidden, packed, block + b, n_columns, K0, K1, PRECISION, LOSS, ACC)
        weights = as_rows(weights)  # [M, ROWS, CHANNELS]
        z = coupled_rows(inputs, sizes, rows_ptr, edges, row + b * _ROWS, D, WIDTH, ACC)
        added = ()
        for m in tl.static_range(D):
            added += (sums[m] + tl.sum(weights * z[m][:, :, None], 1),)  # type: ignore[assignment]
        sums = added
    w = part * _CHANNELS + tl.arange(0, _CHANNELS)[None, :]
    pointers = out_ptr + edge[:, None] * n_out + column + w * D
    for m in tl.static_range(D):
        tl.store(pointers + m, sums[m], live[:, None] & (w < count))


@triton.jit
def _edge_messages_fwd_kernel(
    inputs,
    sizes,
    packed,
    rows_ptr,
    outputs_ptr,
    jobs_ptr,
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
    LOSS: tl.constexpr,
    ACC: tl.constexpr,
):
    """Write messages [n_edges, n_out]. Grid: (tiles of M edges x n_jobs jobs of the plan,).

    Both are on the first axis, as the others hold at most 65,535 programs.
    """
    tile, job = tl.program_id(0) // n_jobs, tl.program_id(0) % n_jobs
    jobs_ptr += job * 2
    output, part = load_output(outputs_ptr, tl.load(jobs_ptr)), tl.load(jobs_ptr + 1)
    edges = load_edges(inputs, sizes, tile * M, M)
    hidden = load_hidden(inputs, sizes, edges, K0, K1, PRECISION)
    for each in tl.static_range(len(COMPONENTS)):
        if output[0] == COMPONENTS[each]:
            _write_messages(
                hidden,
                inputs,
                sizes,
                packed,
                rows_ptr,
                out_ptr,
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
                LOSS,
                ACC,
            )


def edge_messages(
    inputs: EdgeInputs, packed: PackedWeight, plan: Plan, product: TensorProduct
) -> Tensor:
    """Return the messages of all edges, [E, output columns] in the dtype of sums."""
    n_edges = len(inputs.senders)
    out = output_buffer(inputs.node, n_edges, product, packed.bias.dtype)
    block, options = edges_per_program(packed)
    if n_edges and len(plan.jobs):
        with torch.cuda.device_of(out):
            _edge_messages_fwd_kernel[(triton.cdiv(n_edges, block) * len(plan.jobs),)](
                tuple(inputs),
                inputs.sizes,
                packed.tensors,
                plan.rows,
                plan.outputs,
                plan.jobs,
                out,
                len(packed.bias),
                out.shape[1],
                len(plan.jobs),
                M=block,
                **constants(packed, plan),
                **options,
            )
    return out


def edges_per_program(packed: PackedWeight) -> tuple[int, dict[str, int]]:
    """Return the number of edges per program, and launch options.

    In float64, more than 16 edges do not fit in the shared memory of many GPUs.
    """
    if packed.bias.dtype == torch.float64:
        return 32 if has_large_memory(packed.weight) else 16, {"num_warps": 4, "num_stages": 1}
    return 64, {"num_warps": 4, "num_stages": 2}
