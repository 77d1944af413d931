"""Sums of messages of a convolution that keeps the channels of nodes.

    y_i[u, m] = sum_e w_e[u] sum_a x_j[u, a] C_e[a, m]            over the edges that i receives

A program sums the edges of one receiver, in order, for a block of channels and the outputs of a
job. Messages are never stored. Programs that run at the same time work on the same job, so its part
of a radial table stays in the caches.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.convolution.channel_blocks import (
    ChannelRows,
    Weights,
    blocks_on_chip,
    channels_of,
    chunk_of,
    coupling_element,
    load_harmonics,
    load_nodes,
    load_source,
    path_weights,
    weight_arguments,
    weight_constants,
    zero_blocks,
)
from mlff_triton.kernels.convolution.channel_plan import jobs_by_output
from mlff_triton.kernels.convolution.graphs import mean_of, output_buffer
from mlff_triton.kernels.convolution.plan import BLOCK
from mlff_triton.kernels.convolution.tabulated_edges import TabulatedEdges
from mlff_triton.kernels.convolution.types import TensorProduct

_RUN = tl.constexpr(8)
"""Chunks of edges whose sum is added to the total as one term, which halves rounding errors."""

_TABLE_COMPONENTS, _TABLE_CHANNELS, _TABLE_WARPS = 16, 64, 1
_NETWORK_COMPONENTS, _NETWORK_WARPS = 8, 4
_ALL = 1 << 30  # any number of paths: tables are not kept in shared memory


@triton.jit
def _add_path(sums, x, sh, weights, JOBS: tl.constexpr, J: tl.constexpr, P: tl.constexpr):
    """Add the products of a path to the components of its output."""
    first: tl.constexpr = JOBS.jobs[J].paths[P].output
    weighted = ()
    for a in tl.static_range(len(JOBS.jobs[J].paths[P].couplings)):
        weighted += (weights * x[JOBS.jobs[J].paths[P].node + a],)  # type: ignore[assignment]
    added = ()
    for k in tl.static_range(len(JOBS.jobs[J].outputs)):
        total = sums[k]
        if (k >= first) and (k < first + len(JOBS.jobs[J].paths[P].couplings[0])):
            for a in tl.static_range(len(JOBS.jobs[J].paths[P].couplings)):
                if len(JOBS.jobs[J].paths[P].couplings[a][k - first]) > 0:
                    total += coupling_element(sh, JOBS, J, P, a, k - first) * weighted[a]
        added += (total,)  # type: ignore[assignment]
    return added


@triton.jit
def _write_sums(
    rows,
    source,
    out_ptr,
    node,
    first,
    last,
    block,
    JOBS: tl.constexpr,
    J: tl.constexpr,
    M: tl.constexpr,
    C: tl.constexpr,
    H: tl.constexpr,
    COLUMNS: tl.constexpr,
    K0: tl.constexpr,
    K1: tl.constexpr,
    PRECISION: tl.constexpr,
    LOSS: tl.constexpr,
    ACC: tl.constexpr,
    MEAN: tl.constexpr,
    KEPT: tl.constexpr,
):
    """Write sums or means of a job over the edges from first to last.

    The compiler keeps the weights of all paths in shared memory. More than KEPT paths do not fit,
    so their addresses are made to look as if they depended on the edges.
    """
    channel, inside = channels_of(block, JOBS, J, M, C)
    sums = zero_blocks(len(JOBS.jobs[J].outputs), M, C, ACC)
    for begin in range(first, last, _RUN * M):
        part = zero_blocks(len(JOBS.jobs[J].outputs), M, C, ACC)
        for start in range(begin, tl.minimum(begin + _RUN * M, last), M):
            chunk = chunk_of(start, last, M)
            sh = load_harmonics(rows, chunk, JOBS, J, ACC)
            x = load_nodes(rows, chunk, channel, JOBS, J, ACC)
            found = load_source(source, chunk, JOBS, H, K0, K1, PRECISION)
            loaded = block
            if len(JOBS.jobs[J].paths) > KEPT:
                loaded += start >> 62  # 0
            for p in tl.static_range(len(JOBS.jobs[J].paths)):
                weights, _ = path_weights(
                    found,
                    source,
                    channel,
                    loaded,
                    JOBS,
                    J,
                    p,
                    H,
                    COLUMNS,
                    K0,
                    K1,
                    PRECISION,
                    LOSS,
                    ACC,
                )
                if M > 1:
                    weights = tl.where(chunk[1], weights, 0.0)
                part = _add_path(part, x, sh, weights, JOBS, J, p)
        added = ()
        for k in tl.static_range(len(JOBS.jobs[J].outputs)):
            added += (sums[k] + part[k],)  # type: ignore[assignment]
        sums = added

    pointers = out_ptr + node * JOBS.n_output
    for k in tl.static_range(len(JOBS.jobs[J].outputs)):
        total = sums[k]
        if M > 1:
            total = tl.sum(total, 0, keep_dims=True)
        if MEAN:
            total = mean_of(total, last - first)
        columns = JOBS.jobs[J].outputs[k][0] + channel * JOBS.jobs[J].outputs[k][1]
        tl.store(pointers + columns, total.to(out_ptr.dtype.element_ty), inside)


@triton.jit
def _channel_sums_fwd_kernel(
    rows,
    source,
    row_ptr_ptr,
    out_ptr,
    JOBS: tl.constexpr,
    FIRST: tl.constexpr,
    M: tl.constexpr,
    C: tl.constexpr,
    H: tl.constexpr,
    COLUMNS: tl.constexpr,
    K0: tl.constexpr,
    K1: tl.constexpr,
    PRECISION: tl.constexpr,
    LOSS: tl.constexpr,
    ACC: tl.constexpr,
    MEAN: tl.constexpr,
    KEPT: tl.constexpr,
):
    """Write sums or means [N, n_output] of receivers.

    Grid: (receivers, blocks of all jobs). The blocks of job j begin at ``FIRST[j]``.
    """
    node = tl.program_id(0).to(tl.int64)
    first = tl.load(row_ptr_ptr + node).to(tl.int64)
    last = tl.load(row_ptr_ptr + node + 1).to(tl.int64)
    program = tl.program_id(1)
    for j in tl.static_range(len(JOBS.jobs)):
        if (program >= FIRST[j]) & (program < FIRST[j + 1]):
            block = program - FIRST[j]
            _write_sums(
                rows,
                source,
                out_ptr,
                node,
                first,
                last,
                block,
                JOBS,
                j,
                M,
                C,
                H,
                COLUMNS,
                K0,
                K1,
                PRECISION,
                LOSS,
                ACC,
                MEAN,
                KEPT,
            )


def channel_sums(
    rows: ChannelRows, weights: Weights, row_ptr: Tensor, product: TensorProduct, reduce: str
) -> Tensor:
    """Return sums or means [N, output columns] of messages."""
    n_nodes = len(row_ptr) - 1
    out = output_buffer(rows.node, n_nodes, product, rows.edge_sh.dtype)
    tabulated = isinstance(weights, TabulatedEdges)
    if isinstance(weights, TabulatedEdges):
        kept, channels = _ALL, _TABLE_CHANNELS * 4 // rows.edge_sh.element_size()
        jobs = jobs_by_output(product, _TABLE_COMPONENTS)
        channels = min(channels, triton.next_power_of_2(jobs.most_channels))
    else:
        kept, channels = blocks_on_chip(weights), BLOCK
        jobs = jobs_by_output(product, _NETWORK_COMPONENTS, kept)
    first = jobs.first_programs(channels)
    if n_nodes and jobs.jobs:
        with torch.cuda.device_of(out):
            _channel_sums_fwd_kernel[(n_nodes, first[-1])](
                tuple(rows),
                weight_arguments(weights),
                row_ptr,
                out,
                JOBS=jobs,
                FIRST=first,
                C=channels,
                **weight_constants(weights),
                MEAN=reduce == "mean",
                KEPT=kept,
                num_warps=_TABLE_WARPS if tabulated else _NETWORK_WARPS,
                num_stages=1,
            )
    return out
