"""Blocks of edges and channels of a convolution that keeps the channels of nodes.

    w_e[u] = hidden_e weight[:, u] + bias[u]        or a radial function of the distance
    z_e[u, m] = sum_a x_j[u, a] C_e[a, m]

for M edges and `BLOCK` channels u of a group: see `mlff_triton.kernels.convolution.channel_plan`.
In kernels, either ``packed`` has the pointers of packed weights, or ``table`` those of the
positions of edges in a radial table, and of the table. Functions take edges as `load_edges` returns
them.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common.dense import accumulator
from mlff_triton.kernels.common.radial import look_up_function_slopes, look_up_functions
from mlff_triton.kernels.convolution.channel_plan import ChannelPlan
from mlff_triton.kernels.convolution.edge_blocks import (
    PackedWeight,
    edge_weights,
    load_hidden,
    zeros,
)
from mlff_triton.kernels.convolution.plan import BLOCK
from mlff_triton.kernels.numerics.rounding import loss_of

_BLOCK = tl.constexpr(BLOCK)
_FIELDS = tl.constexpr(9)  # of a group of a plan


class RadialTable(NamedTuple):
    """Positions of edges in a radial table, and the table.

    Attributes
    ----------
    interval : int32 [E]
        Interval of each distance.
    fraction, width : [E]
        Fraction of the interval, and its width in Å.
    values : [K + 1, 3, weights]
        Value, slope and secant of each weight at the knots.
    """

    interval: Tensor
    fraction: Tensor
    width: Tensor
    values: Tensor


Weights = PackedWeight | RadialTable


def weight_arguments(weights: Weights) -> tuple[object, ...]:
    """Return what kernels take for weights: ``packed``, ``table`` and number of columns."""
    if isinstance(weights, PackedWeight):
        return weights.tensors, None, len(weights.bias)
    return None, tuple(weights), weights.values.shape[2]


def weight_constants(weights: Weights, plan: ChannelPlan) -> dict[str, object]:
    """Return the compile-time constants of kernels, by their names."""
    made = {"COMPONENTS": plan.components, "WIDTH": plan.width}
    if isinstance(weights, RadialTable):
        made |= {"K0": 16, "K1": 0, "PRECISION": "ieee", "LOSS": (0.0, 0.0, 0.0)}
        return made | {"ACC": accumulator(weights.values), "TABULATED": True}
    made |= {"K0": weights.sizes[0], "K1": weights.sizes[1], "PRECISION": weights.precision}
    made |= {"LOSS": loss_of(weights.weight).halves, "ACC": accumulator(weights.bias)}
    return made | {"TABULATED": False}


@triton.jit
def load_group(groups_ptr, index):
    """Return the fields of a group of a plan."""
    groups_ptr += index * _FIELDS
    return (
        tl.load(groups_ptr),
        tl.load(groups_ptr + 1),
        tl.load(groups_ptr + 2),
        tl.load(groups_ptr + 3),
        tl.load(groups_ptr + 4),
        tl.load(groups_ptr + 5),
        tl.load(groups_ptr + 6),
        tl.load(groups_ptr + 7),
        tl.load(groups_ptr + 8),
    )


@triton.jit
def load_source(
    inputs,
    sizes,
    table,
    edges,
    K0: tl.constexpr,
    K1: tl.constexpr,
    PRECISION: tl.constexpr,
    TABULATED: tl.constexpr,
):
    """Return what weights of edges depend on: hidden values, or positions in the table."""
    edge, live, _, _ = edges
    if TABULATED:
        interval = tl.load(table[0] + edge, live, other=0)[:, None]
        fraction = tl.load(table[1] + edge, live, other=0.0)[:, None]
        source = interval, fraction, tl.load(table[2] + edge, live, other=1.0)[:, None]
    else:
        source = load_hidden(inputs, sizes, edges, K0, K1, PRECISION)
    return source


@triton.jit
def _channels(group, block, edges):
    """Return channels [1, BLOCK], and which of edges and channels there are, [M, BLOCK]."""
    channel = block * _BLOCK + tl.arange(0, _BLOCK)[None, :]
    return channel, edges[1][:, None] & (channel < group[5])


@triton.jit
def channel_weights(
    source,
    packed,
    table,
    group,
    block,
    edges,
    n_columns: tl.constexpr,
    K0: tl.constexpr,
    K1: tl.constexpr,
    PRECISION: tl.constexpr,
    LOSS: tl.constexpr,
    ACC: tl.constexpr,
    TABULATED: tl.constexpr,
):
    """Return the weights of edges for a block of channels, [M, BLOCK]."""
    if TABULATED:
        channel, mask = _channels(group, block, edges)
        column = group[7] + channel * group[8]
        weights = look_up_functions(
            table[3], source[0], source[1], source[2], column, mask, n_columns
        )
    else:
        weights = edge_weights(
            source, packed, group[6] + block, n_columns, K0, K1, PRECISION, LOSS, ACC
        )
    return weights


@triton.jit
def channel_slopes(source, table, group, block, edges, n_columns: tl.constexpr):
    """Return the derivatives of tabulated weights with respect to the distance, [M, BLOCK]."""
    channel, mask = _channels(group, block, edges)
    column = group[7] + channel * group[8]
    return look_up_function_slopes(table[3], source[0], source[1], column, mask, n_columns)


@triton.jit
def node_channels(inputs, sizes, group, block, edges, WIDTH: tl.constexpr, ACC: tl.constexpr):
    """Return the components of sending nodes, [M, BLOCK] each, zero beyond those of the irrep."""
    channel, mask = _channels(group, block, edges)
    pointers = inputs[0] + edges[2][:, None] * sizes[1] + group[1] + channel * group[2]
    found = ()
    for a in tl.static_range(WIDTH):
        x = tl.load(pointers + a, mask & (a < group[2]), other=0.0)
        found += (x.to(ACC),)  # type: ignore[assignment]
    return found


@triton.jit
def matrix_element(inputs, sizes, group, edges, a, m, D: tl.constexpr, ACC: tl.constexpr):
    """Return an element of the coupling matrices, [M, 1], zero beyond the irrep's components."""
    pointers = inputs[1] + edges[0] * sizes[2] + group[3] + a * D + m
    return tl.load(pointers, edges[1] & (a < group[2]), other=0.0).to(ACC)[:, None]


@triton.jit
def coupled_channels(
    inputs, sizes, group, x, edges, D: tl.constexpr, WIDTH: tl.constexpr, ACC: tl.constexpr
):
    """Return the D components of coupled rows, [M, BLOCK] each."""
    z = zeros(x[0].shape[0], _BLOCK, D, ACC)
    for a in tl.static_range(WIDTH):
        added = ()
        for m in tl.static_range(D):
            c = matrix_element(inputs, sizes, group, edges, a, m, D, ACC)
            added += (z[m] + x[a] * c,)  # type: ignore[assignment]
        z = added
    return z


@triton.jit
def channel_gradients(grad_ptr, n_out, group, block, edges, D: tl.constexpr, ACC: tl.constexpr):
    """Return the D components of gradients of receivers, [M, BLOCK] each."""
    channel, mask = _channels(group, block, edges)
    pointers = grad_ptr + edges[3][:, None] * n_out + group[4] + channel * D
    found = ()
    for m in tl.static_range(D):
        found += (tl.load(pointers + m, mask, other=0.0).to(ACC),)  # type: ignore[assignment]
    return found
