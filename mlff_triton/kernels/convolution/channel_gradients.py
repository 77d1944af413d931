"""Gradients of a convolution that keeps the channels of nodes.

With the gradients g of messages, which are those of their receivers,

    t_e[u, a]      = sum_m C_e[a, m] g_e[u, m]
    grad x_j[u, a] = sum_e w_e[u] t_e[u, a]                        over the edges that j sends
    grad w_e[u]    = sum_a x_j[u, a] t_e[u, a]
    grad s_e[b]    = sum_u w_e[u] sum_am c[a, b, m] x_j[u, a] g_e[u, m]
    grad d_e       = sum_u grad w_e[u] w'_e[u]
    grad hidden_e  = sum_u grad w_e[u] weight[:, u]
    grad weight    = sum_e hidden_e grad w_e

A program computes the contributions of all edges of one receiver for a block of channels and one
irrep of the nodes, so it reads the gradients of the receiver once. Sums over channels are stored in
parts, which are added in order. Contributions to nodes are stored per edge, in the order of
components, and added by sender. Gradients of weights are summed by several programs, which take
chunks of edges in turn; a second pass adds their sums, in order.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.convolution.channel_blocks import (
    ChannelRows,
    Network,
    Weights,
    channels_of,
    chunk_of,
    coupling_element,
    flat,
    load_harmonics,
    load_nodes,
    load_source,
    path_weights,
    weight_arguments,
    weight_constants,
    zero_blocks,
)
from mlff_triton.kernels.convolution.channel_plan import Jobs, jobs_by_node, packing_of
from mlff_triton.kernels.convolution.gradient_blocks import (
    add_hidden_gradient,
    add_weight_gradient,
    splits_of,
    store_hidden_gradient,
    store_weight_gradient,
    zero_weight_gradient,
)
from mlff_triton.kernels.convolution.plan import BLOCK
from mlff_triton.kernels.convolution.tabulated_edges import TabulatedEdges
from mlff_triton.kernels.convolution.types import TensorProduct

_TABLE_WARPS, _NETWORK_WARPS = 1, 4
_FEW_COMPONENTS = 24  # of the outputs of a job
_WEIGHT_EDGES = 32  # edges at a time, for gradients of weights


@triton.jit
def load_gradients(
    grad_ptr, node, channel, inside, JOBS: tl.constexpr, J: tl.constexpr, ACC: tl.constexpr
):
    """Return the gradients of the outputs of a job, zero beyond the last channel."""
    pointers = grad_ptr + node * JOBS.n_output + channel
    found = ()
    for k in tl.static_range(len(JOBS.jobs[J].outputs)):
        g = tl.load(pointers + JOBS.jobs[J].gradients[k], inside, other=0.0)
        found += (g.to(ACC),)  # type: ignore[assignment]
    return found


@triton.jit
def coupled_gradients(g, sh, zero, JOBS: tl.constexpr, J: tl.constexpr, P: tl.constexpr):
    """Return the gradients of weighted nodes for a path, by components of the node."""
    first: tl.constexpr = JOBS.jobs[J].paths[P].output
    found = ()
    for a in tl.static_range(len(JOBS.jobs[J].paths[P].couplings)):
        total = zero
        for m in tl.static_range(len(JOBS.jobs[J].paths[P].couplings[a])):
            if len(JOBS.jobs[J].paths[P].couplings[a][m]) > 0:
                total += coupling_element(sh, JOBS, J, P, a, m) * g[first + m]
        found += (total,)  # type: ignore[assignment]
    return found


@triton.jit
def weight_gradient_of(x, t, JOBS: tl.constexpr, J: tl.constexpr, P: tl.constexpr):
    """Return the gradients of the weights of a path, from those of weighted nodes."""
    total = x[JOBS.jobs[J].paths[P].node] * t[0]
    for a in tl.static_range(1, len(JOBS.jobs[J].paths[P].couplings)):
        total += x[JOBS.jobs[J].paths[P].node + a] * t[a]
    return total


@triton.jit
def _add_harmonics(sums, weights, x, g, JOBS: tl.constexpr, J: tl.constexpr, P: tl.constexpr):
    """Add the contributions of a path to gradients of harmonics, before the sum over channels."""
    node: tl.constexpr = JOBS.jobs[J].paths[P].node
    output: tl.constexpr = JOBS.jobs[J].paths[P].output
    added = ()
    for b in tl.static_range(len(JOBS.jobs[J].harmonics)):
        total = sums[b]
        for k in tl.static_range(len(JOBS.jobs[J].paths[P].harmonics[b])):
            weighted = weights * x[node + JOBS.jobs[J].paths[P].harmonics[b][k][0]]
            term = weighted * g[output + JOBS.jobs[J].paths[P].harmonics[b][k][1]]
            total += term * JOBS.jobs[J].paths[P].harmonics[b][k][2]
        added += (total,)  # type: ignore[assignment]
    return added


@triton.jit
def _add_nodes(sums, weights, t, JOBS: tl.constexpr, J: tl.constexpr):
    """Add the contributions of a path to gradients of the node. A job has one irrep of nodes."""
    added = ()
    for a in tl.static_range(len(JOBS.jobs[J].nodes)):
        added += (sums[a] + weights * t[a],)  # type: ignore[assignment]
    return added


@triton.jit
def _edge_terms(
    rows,
    source,
    g,
    chunk,
    channel,
    block,
    wanted,
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
):
    """Return the contributions of edges to nodes, harmonics, distances and hidden values.

    Contributions whose pointer in ``wanted`` is None may be left at zero. Those to harmonics
    and distances are not summed over channels.
    """
    zero = zero_blocks(1, M, C, ACC)[0]
    of_node = zero_blocks(len(JOBS.jobs[J].nodes), M, C, ACC)
    of_sh = zero_blocks(len(JOBS.jobs[J].harmonics), M, C, ACC)
    of_distance = zero
    of_hidden = tl.zeros((M, K0), ACC), tl.zeros((M, K1 if K1 > 0 else 16), ACC)
    sh = load_harmonics(rows, chunk, JOBS, J, ACC)
    x = load_nodes(rows, chunk, channel, JOBS, J, ACC)
    found = load_source(source, chunk, JOBS, H, K0, K1, PRECISION)
    for p in tl.static_range(len(JOBS.jobs[J].paths)):
        weights, slopes = path_weights(
            found,
            source,
            channel,
            block,
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
        t = coupled_gradients(g, sh, zero, JOBS, J, p)
        gradient = weight_gradient_of(x, t, JOBS, J, p)
        if wanted[0] is not None:
            of_node = _add_nodes(of_node, weights, t, JOBS, J)
        if wanted[1] is not None:
            of_sh = _add_harmonics(of_sh, weights, x, g, JOBS, J, p)
        if H == 0:
            of_distance += gradient * slopes
        elif wanted[2] is not None:
            packed = source[1], source[2], source[3]
            column = JOBS.jobs[J].paths[p].block + block
            of_hidden = add_hidden_gradient(
                of_hidden, gradient, packed, column, COLUMNS, K0, K1, PRECISION, ACC
            )
    return of_node, of_sh, of_distance, of_hidden


@triton.jit
def _store_terms(
    terms,
    wanted,
    chunk,
    channel,
    inside,
    n_edges,
    JOBS: tl.constexpr,
    J: tl.constexpr,
    M: tl.constexpr,
    H: tl.constexpr,
    K0: tl.constexpr,
    K1: tl.constexpr,
):
    """Store contributions of edges to nodes, and parts of the other gradients."""
    edge, live = chunk
    part = tl.program_id(1).to(tl.int64)
    row = part * n_edges + edge
    if wanted[0] is not None:
        if M > 1:
            inside = inside & live
        pointers = wanted[0] + edge * JOBS.n_node + channel
        for k in tl.static_range(len(JOBS.jobs[J].nodes)):
            tl.store(pointers + JOBS.jobs[J].nodes[k], terms[0][k], inside)
    if wanted[1] is not None:
        pointers = wanted[1] + row * JOBS.n_harmonics
        for k in tl.static_range(len(JOBS.jobs[J].harmonics)):
            _store_sum(pointers + JOBS.jobs[J].harmonics[k], terms[1][k], live, M)
        for k in tl.static_range(len(JOBS.jobs[J].others)):
            _store_sum(pointers + JOBS.jobs[J].others[k], tl.zeros_like(terms[2]), live, M)
    if wanted[2] is not None:
        if H == 0:
            _store_sum(wanted[2] + row, terms[2], live, M)
        else:
            store_hidden_gradient(terms[3], wanted[2], flat(chunk), part, n_edges, H, K0, K1)


@triton.jit
def _store_sum(pointers, values, live, M: tl.constexpr):
    """Store sums over channels."""
    if M == 1:
        tl.store(pointers, tl.sum(values, 0))
    else:
        tl.store(pointers, tl.sum(values, 1, keep_dims=True), live)


@triton.jit
def _channel_gradients_kernel(
    rows,
    source,
    grad_ptr,
    row_ptr_ptr,
    wanted,
    n_edges,
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
):
    """Write contributions [n_edges, n_node] to nodes, and parts of the other gradients.

    These are parts of harmonics [parts, n_edges, n_harmonics], and of distances [parts, n_edges] or
    hidden values [parts, n_edges, H]. Grid: (receivers, parts). A part is a block of a job, and
    those of job j begin at ``FIRST[j]``.
    """
    node = tl.program_id(0).to(tl.int64)
    first = tl.load(row_ptr_ptr + node).to(tl.int64)
    last = tl.load(row_ptr_ptr + node + 1).to(tl.int64)
    program = tl.program_id(1)
    for j in tl.static_range(len(JOBS.jobs)):
        if (program >= FIRST[j]) & (program < FIRST[j + 1]):
            block = program - FIRST[j]
            channel, inside = channels_of(block, JOBS, j, M, C)
            g = load_gradients(grad_ptr, node, channel, inside, JOBS, j, ACC)
            for start in range(first, last, M):
                chunk = chunk_of(start, last, M)
                terms = _edge_terms(
                    rows,
                    source,
                    g,
                    chunk,
                    channel,
                    block,
                    wanted,
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
                )
                _store_terms(terms, wanted, chunk, channel, inside, n_edges, JOBS, j, M, H, K0, K1)


def channel_gradients(
    grad: Tensor,
    rows: ChannelRows,
    weights: Weights,
    row_ptr: Tensor,
    product: TensorProduct,
    wanted: Collection[int],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return contributions to nodes, and gradients of harmonics and of distances or hidden values.

    Takes the gradients [N, output] of sums. Rows of these and of the contributions [E, node
    columns] are in the order of components. Only the ``wanted`` results, 0 to 2, are computed, and
    the others are None.
    """
    n_edges = len(rows.senders)
    tabulated = isinstance(weights, TabulatedEdges)
    jobs = jobs_by_node(product)
    channels = _table_channels(jobs, grad) if tabulated else BLOCK
    first = jobs.first_programs(channels)
    parts = first[-1]
    nodes = of_sh = of_weights = None
    if 0 in wanted:
        make = grad.new_empty if jobs.reaches_all else grad.new_zeros
        nodes = make(n_edges, jobs.n_node)
    if 1 in wanted:
        of_sh = grad.new_empty(parts, n_edges, jobs.n_harmonics)
    if 2 in wanted:
        shape = (weights.hidden.shape[1],) if isinstance(weights, Network) else ()
        of_weights = grad.new_empty(parts, n_edges, *shape)
    if n_edges and parts:
        with torch.cuda.device_of(grad):
            _channel_gradients_kernel[(len(row_ptr) - 1, parts)](
                tuple(rows),
                weight_arguments(weights),
                grad,
                row_ptr,
                (nodes, of_sh, of_weights),
                n_edges,
                JOBS=jobs,
                FIRST=first,
                C=channels,
                **weight_constants(weights),
                num_warps=_TABLE_WARPS if tabulated else _NETWORK_WARPS,
                num_stages=1,
            )
    return nodes, _total(of_sh), _total(of_weights)


def _table_channels(jobs: Jobs, grad: Tensor) -> int:
    """Return the number of channels per program whose values fit in registers."""
    most = max((len(job.outputs) for job in jobs.jobs), default=0)
    fitting = (128 if most <= _FEW_COMPONENTS else 64) * 4 // grad.element_size()
    return int(min(fitting, triton.next_power_of_2(jobs.most_channels)))


def _total(parts: Tensor | None) -> Tensor | None:
    return parts if parts is None else parts[0] if len(parts) == 1 else parts.sum(0)


@triton.jit
def _write_weight_gradient(
    rows,
    source,
    grad_ptr,
    receivers_ptr,
    out_ptr,
    bias_ptr,
    block,
    n_edges,
    JOBS: tl.constexpr,
    J: tl.constexpr,
    P: tl.constexpr,
    M: tl.constexpr,
    C: tl.constexpr,
    H: tl.constexpr,
    COLUMNS: tl.constexpr,
    K0: tl.constexpr,
    K1: tl.constexpr,
    PRECISION: tl.constexpr,
    ACC: tl.constexpr,
):
    """Write the gradients of a block of weights of a path, and of its bias."""
    channel, inside = channels_of(block, JOBS, J, M, C)
    hidden = source[0], source[0], source[0]
    zero = zero_blocks(1, M, C, ACC)[0]
    sums = zero_weight_gradient(K0, K1, ACC)
    for start in range(tl.program_id(1) * M, n_edges, tl.num_programs(1) * M):
        chunk = chunk_of(start, n_edges, M)
        receiver = tl.load(receivers_ptr + chunk[0]).to(tl.int64)
        g = load_gradients(grad_ptr, receiver, channel, inside, JOBS, J, ACC)
        sh = load_harmonics(rows, chunk, JOBS, J, ACC)
        x = load_nodes(rows, chunk, channel, JOBS, J, ACC)
        t = coupled_gradients(g, sh, zero, JOBS, J, P)
        gradient = tl.where(chunk[1], weight_gradient_of(x, t, JOBS, J, P), 0.0)
        sizes = 0, 0, 0, H
        edges = flat(chunk)
        sums = add_weight_gradient(sums, gradient, hidden, sizes, edges, K0, K1, PRECISION, ACC)
    block += JOBS.jobs[J].paths[P].block
    store_weight_gradient(sums, out_ptr, bias_ptr, block, H, COLUMNS, K0, K1)


@triton.jit
def _channel_weight_gradient_kernel(
    rows,
    source,
    grad_ptr,
    receivers_ptr,
    out_ptr,
    bias_ptr,
    n_edges,
    JOBS: tl.constexpr,
    M: tl.constexpr,
    C: tl.constexpr,
    H: tl.constexpr,
    COLUMNS: tl.constexpr,
    K0: tl.constexpr,
    K1: tl.constexpr,
    PRECISION: tl.constexpr,
    ACC: tl.constexpr,
):
    """Write partial gradients of weight [splits, H, COLUMNS] and bias [splits, COLUMNS].

    Grid: (blocks of packed weights, splits of the edges).
    """
    for j in tl.static_range(len(JOBS.jobs)):
        for p in tl.static_range(len(JOBS.jobs[j].paths)):
            block = tl.program_id(0) - JOBS.jobs[j].paths[p].block
            if (block >= 0) & (block * C < JOBS.jobs[j].count):
                _write_weight_gradient(
                    rows,
                    source,
                    grad_ptr,
                    receivers_ptr,
                    out_ptr,
                    bias_ptr,
                    block,
                    n_edges,
                    JOBS,
                    j,
                    p,
                    M,
                    C,
                    H,
                    COLUMNS,
                    K0,
                    K1,
                    PRECISION,
                    ACC,
                )


def channel_weight_gradient(
    grad: Tensor, rows: ChannelRows, network: Network, receivers: Tensor, product: TensorProduct
) -> tuple[Tensor, Tensor]:
    """Return gradients [H, weights] and [weights] of weight and bias."""
    constants = weight_constants(network) | {"M": _WEIGHT_EDGES}
    del constants["LOSS"]
    n_edges, n_columns = len(rows.senders), len(network.packed.bias)
    n_blocks = n_columns // BLOCK
    splits = splits_of(triton.cdiv(n_edges, _WEIGHT_EDGES), n_blocks, grad)
    out = grad.new_empty(splits, network.hidden.shape[1], n_columns)
    bias = grad.new_empty(splits, n_columns)
    if out.numel():
        with torch.cuda.device_of(grad):
            _channel_weight_gradient_kernel[(n_blocks, splits)](
                tuple(rows),
                weight_arguments(network),
                grad,
                receivers,
                out,
                bias,
                n_edges,
                JOBS=jobs_by_node(product),
                C=BLOCK,
                **constants,
                num_warps=4,
                num_stages=1,
            )
    position = packing_of(product, grad.device).position
    return out.sum(0).index_select(1, position), bias.sum(0).index_select(0, position)
