"""Blocks of edges and channels of a convolution that keeps the channels of nodes.

    w_e[u] = hidden_e weight[:, u] + bias[u]        or a radial function of the distance
    C_e[a, m] = sum_b c[a, b, m] s_e[b]

for the paths of a job: see `mlff_triton.kernels.convolution.channel_plan`. Weights from a network
are computed for M edges at a time: values are blocks [M, C] for C channels, or [M, 1] without
channels. Weights from a table are looked up for one edge at a time: values are blocks [C] or
scalars.

In kernels, ``rows`` has the pointers of nodes, harmonics and senders, and ``source`` those of
`TabulatedEdges` or of `Network`. A chunk of edges is a pair of their indices and a mask of those
that exist. Channels after the last one repeat it.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common import hardware
from mlff_triton.kernels.common.dense import accumulator
from mlff_triton.kernels.convolution.edge_blocks import PackedWeight, edge_weights, load_hidden
from mlff_triton.kernels.convolution.plan import BLOCK
from mlff_triton.kernels.convolution.tabulated_edges import TabulatedEdges
from mlff_triton.kernels.numerics.rounding import loss_of

_BLOCK = tl.constexpr(BLOCK)
_TABLE_EDGES, _NETWORK_EDGES = 1, 16  # edges at a time


class ChannelRows(NamedTuple):
    """Inputs of nodes and edges, contiguous.

    Attributes
    ----------
    node : [S, node columns]
        Rows of nodes, in the order of components.
    edge_sh : [E, harmonics]
        Harmonics.
    senders : int64 or int32 [E]
        Sending nodes.
    """

    node: Tensor
    edge_sh: Tensor
    senders: Tensor


class Network(NamedTuple):
    """Network that makes the weights of edges.

    Attributes
    ----------
    hidden : [E, H]
        Hidden values.
    packed : PackedWeight
        Last layer.
    """

    hidden: Tensor
    packed: PackedWeight


Weights = TabulatedEdges | Network


def weight_arguments(weights: Weights) -> tuple[Tensor | None, ...]:
    """Return the tensors of weights, as kernels take them."""
    if isinstance(weights, TabulatedEdges):
        return tuple(weights)
    return weights.hidden, *weights.packed.tensors


def weight_constants(weights: Weights) -> dict[str, object]:
    """Return the compile-time constants of kernels, by their names."""
    if isinstance(weights, TabulatedEdges):
        made = {
            "M": _TABLE_EDGES,
            "H": 0,
            "COLUMNS": 0,
            "K0": 16,
            "K1": 0,
            "PRECISION": "ieee",
            "LOSS": (0.0, 0.0, 0.0),
        }
        return made | {"ACC": accumulator(weights.table)}
    packed = weights.packed
    made = {"M": _NETWORK_EDGES, "H": weights.hidden.shape[1], "COLUMNS": len(packed.bias)}
    made |= {"K0": packed.sizes[0], "K1": packed.sizes[1], "PRECISION": packed.precision}
    return made | {"LOSS": loss_of(packed.weight).halves, "ACC": accumulator(packed.bias)}


def blocks_on_chip(network: Network) -> int:
    """Return the number of blocks of weights that fit in shared memory beside the hidden values."""
    weight = network.packed.weight
    column = weight.shape[0] * weight.shape[1] * weight.element_size()  # of one weight, in bytes
    rest = hardware.shared_memory(weight) - _NETWORK_EDGES * column
    return rest // (BLOCK * column)


@triton.jit
def zero_blocks(N: tl.constexpr, M: tl.constexpr, C: tl.constexpr, ACC: tl.constexpr):
    """Return N blocks of zeros."""
    blocks = ()
    for _ in tl.static_range(N):
        if M == 1:
            blocks += (tl.zeros((C,), ACC),)  # type: ignore[assignment]
        else:
            blocks += (tl.zeros((M, C), ACC),)  # type: ignore[assignment]
    return blocks


@triton.jit
def chunk_of(start, last, M: tl.constexpr):
    """Return M edges from ``start`` on, repeating the last one, and a mask of those that exist."""
    if M == 1:
        chunk = start, True
    else:
        edge = start + tl.arange(0, M)
        live = (edge < last)[:, None]
        chunk = tl.minimum(edge, last - 1)[:, None], live
    return chunk


@triton.jit
def channels_of(block, JOBS: tl.constexpr, J: tl.constexpr, M: tl.constexpr, C: tl.constexpr):
    """Return the channels of a block, and a mask of those that exist."""
    channel = block * C + tl.arange(0, C)
    if M > 1:
        channel = channel[None, :]
    inside = channel < JOBS.jobs[J].count
    if JOBS.jobs[J].count % C > 0:
        channel = tl.minimum(channel, JOBS.jobs[J].count - 1)
    return channel, inside


@triton.jit
def load_harmonics(rows, chunk, JOBS: tl.constexpr, J: tl.constexpr, ACC: tl.constexpr):
    """Return the harmonics that a job needs."""
    pointers = rows[1] + chunk[0] * JOBS.n_harmonics
    found = ()
    for k in tl.static_range(len(JOBS.jobs[J].harmonics)):
        found += (tl.load(pointers + JOBS.jobs[J].harmonics[k]).to(ACC),)  # type: ignore[assignment]
    return found


@triton.jit
def load_nodes(rows, chunk, channel, JOBS: tl.constexpr, J: tl.constexpr, ACC: tl.constexpr):
    """Return the components of sending nodes that a job needs."""
    sender = tl.load(rows[2] + chunk[0]).to(tl.int64)
    pointers = rows[0] + sender * JOBS.n_node + channel
    found = ()
    for k in tl.static_range(len(JOBS.jobs[J].nodes)):
        found += (tl.load(pointers + JOBS.jobs[J].nodes[k]).to(ACC),)  # type: ignore[assignment]
    return found


@triton.jit
def flat(chunk):
    """Return a chunk of several edges as functions of `edge_blocks` take it."""
    M: tl.constexpr = chunk[0].shape[0]
    return tl.reshape(chunk[0], (M,)), tl.reshape(chunk[1], (M,)), 0


@triton.jit
def load_source(
    source,
    chunk,
    JOBS: tl.constexpr,
    H: tl.constexpr,
    K0: tl.constexpr,
    K1: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Return the inputs of the weights of edges: hidden values, or positions in the table."""
    if H > 0:
        hidden = source[0], source[0], source[0]
        found = load_hidden(hidden, (0, 0, 0, H), flat(chunk), K0, K1, PRECISION)
    else:
        interval = tl.load(source[0] + chunk[0]).to(tl.int64)
        factors = source[1] + chunk[0] * 6
        knot = source[2] + interval * (3 * JOBS.n_weights)
        of_value = tl.load(factors), tl.load(factors + 1), tl.load(factors + 2)
        of_slope = tl.load(factors + 3), tl.load(factors + 4), tl.load(factors + 5)
        found = knot, of_value, of_slope
    return found


@triton.jit
def path_weights(
    found,
    source,
    channel,
    block,
    JOBS: tl.constexpr,
    J: tl.constexpr,
    P: tl.constexpr,
    H: tl.constexpr,
    COLUMNS: tl.constexpr,
    K0: tl.constexpr,
    K1: tl.constexpr,
    PRECISION: tl.constexpr,
    LOSS: tl.constexpr,
    ACC: tl.constexpr,
):
    """Return the weights of a path and, from tables, their derivatives by the distance."""
    if H > 0:
        packed = source[1], source[2], source[3]
        column = JOBS.jobs[J].paths[P].block + block
        weights = edge_weights(found, packed, column, COLUMNS, K0, K1, PRECISION, LOSS, ACC)
        made = weights, weights
    else:
        F: tl.constexpr = JOBS.n_weights
        knot, of_value, of_slope = found
        row = knot + channel * JOBS.jobs[J].paths[P].stride + JOBS.jobs[J].paths[P].weight
        value = tl.load(row)
        terms = tl.load(row + F), tl.load(row + 2 * F), tl.load(row + 4 * F)
        made = value + _blend(of_value, terms), _blend(of_slope, terms)
    return made


@triton.jit
def _blend(factors, terms):
    """Return the weighted sum of the first slope, the secant and the second slope."""
    return factors[0] * terms[0] + factors[1] * terms[1] + factors[2] * terms[2]


@triton.jit
def coupling_element(
    sh, JOBS: tl.constexpr, J: tl.constexpr, P: tl.constexpr, a: tl.constexpr, m: tl.constexpr
):
    """Return an element of a coupling matrix that has at least one term."""
    first = sh[JOBS.jobs[J].paths[P].couplings[a][m][0][0]]
    total = first * JOBS.jobs[J].paths[P].couplings[a][m][0][1]
    for k in tl.static_range(1, len(JOBS.jobs[J].paths[P].couplings[a][m])):
        harmonic = sh[JOBS.jobs[J].paths[P].couplings[a][m][k][0]]
        total += harmonic * JOBS.jobs[J].paths[P].couplings[a][m][k][1]
    return total
