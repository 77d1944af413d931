"""Blocks of edges: their weights, computed in registers, and their coupled rows.

    w_e = hidden_e weight + bias                              [M, ROWS * CHANNELS]
    z_e[m] = sum_a x_j[a] C_e[a, m]                           [M, ROWS] for each component m

for M edges, and a block of rows and output channels as `mlff_triton.kernels.convolution.plan`
orders them. In float32, 64 or more hidden values are multiplied by the weights as halves, with a
unit per edge and per column: see `mlff_triton.kernels.numerics.split`.

In kernels, ``inputs`` are the pointers of `EdgeInputs`, ``sizes`` its sizes, and ``packed`` the
pointers of weight, units and bias.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common.blocks import block_side
from mlff_triton.kernels.common.dense import accumulator
from mlff_triton.kernels.convolution.plan import BLOCK, CHANNELS, FILLER, ROWS, Plan
from mlff_triton.kernels.numerics.product import (
    FULL,
    load,
    product,
    split_along,
    split_below,
    untruncated,
)
from mlff_triton.kernels.numerics.rounding import loss_of

_ROWS = tl.constexpr(ROWS)
_CHANNELS = tl.constexpr(CHANNELS)
_BLOCK = tl.constexpr(BLOCK)
_FILLER = tl.constexpr(FILLER)
_FIELDS = tl.constexpr(6)  # of an output of a plan
_FEWEST_HIDDEN = 64
"""Smallest number of products in a sum of halves. Fewer would show the bit that halves lack."""

MAX_HIDDEN = 256
"""Largest number of hidden values whose halves fit on chip."""


class EdgeInputs(NamedTuple):
    """Inputs of all edges, contiguous.

    Attributes
    ----------
    node : [S, node columns]
        Rows of nodes.
    matrices : [E, P]
        Coupling matrices.
    hidden : [E, H]
        Hidden values of the network of the weights.
    senders : int64 or int32 [E]
        Sending nodes.
    """

    node: Tensor
    matrices: Tensor
    hidden: Tensor
    senders: Tensor

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Numbers of edges, columns of nodes, elements of matrices and hidden values."""
        return len(self.senders), self.node.shape[1], self.matrices.shape[1], self.hidden.shape[1]


class PackedWeight(NamedTuple):
    """Weights in the order of a plan, for kernels.

    Attributes
    ----------
    weight : [parts, hidden, columns]
        Two halves if ``precision`` is "halves", else one part in the dtype of the weight; zero for
        filler.
    units : [columns] or None
        Units of halves.
    bias : [columns]
        In the dtype of sums.
    sizes : (int, int)
        Numbers of hidden values in the first block and in the second, powers of two or zero.
    precision : str
        Scheme of products.
    """

    weight: Tensor
    units: Tensor | None
    bias: Tensor
    sizes: tuple[int, int]
    precision: str

    @property
    def tensors(self) -> tuple[Tensor, Tensor | None, Tensor]:
        """Weight, units and bias."""
        return self[:3]


@triton.jit
def _pack_kernel(
    weight_ptr,
    bias_ptr,
    source_ptr,
    packed_ptr,
    units_ptr,
    packed_bias_ptr,
    n_hidden,
    n_weights,
    n_columns,
    hidden_rows,
    PRECISION: tl.constexpr,
    COLUMNS: tl.constexpr,
    K: tl.constexpr,
):
    """Write the packed weight [parts, hidden_rows, n_columns] with units, and bias [n_columns].

    Reads the weight [n_hidden, n_weights], the bias [n_weights], and the sources [n_columns]. Grid:
    (blocks of COLUMNS columns,).
    """
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    source = tl.load(source_ptr + column)
    k = tl.arange(0, K).to(tl.int64)[:, None]
    live = source != _FILLER

    values = tl.load(
        weight_ptr + k * n_weights + source[None, :], live[None, :] & (k < n_hidden), other=0.0
    )  # [K, COLUMNS]
    bias = tl.load(bias_ptr + source, live, other=0.0)
    packed_ptr += k * n_columns + column[None, :]
    if PRECISION == "halves":
        high, low, unit = split_along(values, 0)
        tl.store(packed_ptr, high, k < hidden_rows)
        tl.store(packed_ptr + hidden_rows * n_columns, low, k < hidden_rows)
        tl.store(units_ptr + column[None, :], unit)
    else:
        tl.store(packed_ptr, values, k < hidden_rows)
    tl.store(packed_bias_ptr + column, bias.to(packed_bias_ptr.dtype.element_ty))


def pack_weight(weight: Tensor, bias: Tensor, source: Tensor) -> PackedWeight:
    """Reorder the columns of a weight [hidden, weights] and bias [weights]; split the weight."""
    n_hidden, n_weights = weight.shape
    n_columns = len(source)
    precision = precision_of(weight)
    split = precision == "halves"
    sizes = hidden_blocks(n_hidden)
    dtype = torch.float16 if split else weight.dtype
    packed = weight.new_empty(1 + split, sum(sizes), n_columns, dtype=dtype)
    units = weight.new_empty(n_columns) if split else None
    sums = torch.float64 if weight.dtype == torch.float64 else torch.float32
    packed_bias = weight.new_empty(n_columns, dtype=sums)
    if n_columns:
        with torch.cuda.device_of(weight):
            _pack_kernel[(n_columns // CHANNELS,)](
                weight.contiguous(),
                bias.contiguous(),
                source,
                packed,
                units,
                packed_bias,
                n_hidden,
                n_weights,
                n_columns,
                sum(sizes),
                PRECISION=precision,
                COLUMNS=CHANNELS,
                K=2 * sizes[0] if sizes[1] else sizes[0],
                num_warps=4,
            )
    return PackedWeight(packed, units, packed_bias, sizes, precision)


def precision_of(weight: Tensor) -> str:
    """Return the scheme in which a weight [hidden, weights] is multiplied."""
    if weight.dtype != torch.float32:
        return "ieee"
    return "halves" if len(weight) >= _FEWEST_HIDDEN else str(FULL.value)


@cache
def hidden_blocks(n_hidden: int) -> tuple[int, int]:
    """Return two block sizes, powers of two or zero, that hold the hidden values of an edge."""
    whole = block_side(n_hidden)
    half = whole // 2
    rest = block_side(n_hidden - half)
    return (whole, 0) if half < 16 or rest >= half else (half, rest)


@triton.jit
def load_edges(inputs, sizes, start, M: tl.constexpr):
    """Return M edges from ``start`` on: index, validity and sender, [M] each."""
    edge = start + tl.arange(0, M)
    live = edge < sizes[0]
    sender = tl.load(inputs[3] + edge, live, other=0).to(tl.int64)
    return edge.to(tl.int64), live, sender


@triton.jit
def load_output(outputs_ptr, index):
    """Return the fields of an output of a plan."""
    outputs_ptr += index * _FIELDS
    return (
        tl.load(outputs_ptr),
        tl.load(outputs_ptr + 1),
        tl.load(outputs_ptr + 2),
        tl.load(outputs_ptr + 3),
        tl.load(outputs_ptr + 4),
        tl.load(outputs_ptr + 5),
    )


@triton.jit
def load_hidden(inputs, sizes, edges, K0: tl.constexpr, K1: tl.constexpr, PRECISION: tl.constexpr):
    """Return hidden values of edges: parts [M, K0] and [M, K1], and units [M, 1] of halves."""
    edge, live, _ = edges
    n_hidden = sizes[3]
    row = inputs[2] + edge[:, None] * n_hidden
    k = tl.arange(0, K0)[None, :]
    first = tl.load(row + k, live[:, None] & (k < n_hidden), other=0.0)  # [M, K0]
    second = first
    if K1 > 0:
        k_1 = K0 + tl.arange(0, K1)[None, :]
        second = tl.load(row + k_1, live[:, None] & (k_1 < n_hidden), other=0.0)  # [M, K1]
    if PRECISION == "halves":
        largest = tl.max(tl.abs(first), 1, keep_dims=True)
        if K1 > 0:
            largest = tl.maximum(largest, tl.max(tl.abs(second), 1, keep_dims=True))
        high, low, unit = split_below(first, largest)
        high_1, low_1, _ = split_below(second, largest)
        parts = (high, low), (high_1, low_1), unit
    else:
        parts = (first,), (second,), 1.0  # type: ignore[assignment]
    return parts


@triton.jit
def load_packed(
    packed, block, n_columns, K0: tl.constexpr, K1: tl.constexpr, PRECISION: tl.constexpr
):
    """Return the packed weights of a block: parts [K0, BLOCK] and [K1, BLOCK]."""
    pointers = packed[0] + block * _BLOCK + tl.arange(0, _BLOCK)[None, :]
    k = tl.arange(0, K0)[:, None]
    first = load(pointers + k * n_columns, None, K0 + K1, n_columns, PRECISION)
    second = first
    if K1 > 0:
        k_1 = K0 + tl.arange(0, K1)[:, None]
        second = load(pointers + k_1 * n_columns, None, K0 + K1, n_columns, PRECISION)
    return first, second


@triton.jit
def add_product(x, y, acc, PRECISION: tl.constexpr):
    """Return ``acc + x y`` for parts of blocks; units of halves are left to the caller."""
    if PRECISION == "halves":
        acc = product(x, y, PRECISION, acc)
    else:
        acc = tl.dot(x[0], y[0], acc, input_precision=PRECISION, out_dtype=acc.dtype)
    return acc


@triton.jit
def transposed(x, PRECISION: tl.constexpr):
    """Return the parts of a transposed block."""
    parts = (tl.trans(x[0]),)
    if PRECISION == "halves":
        parts += (tl.trans(x[1]),)  # type: ignore[assignment]
    return parts


@triton.jit
def edge_weights(
    hidden,
    packed,
    block,
    n_columns,
    K0: tl.constexpr,
    K1: tl.constexpr,
    PRECISION: tl.constexpr,
    LOSS: tl.constexpr,
    ACC: tl.constexpr,
):
    """Return the weights of edges for a block, [M, BLOCK]."""
    first, second, unit = hidden
    weight, weight_1 = load_packed(packed, block, n_columns, K0, K1, PRECISION)
    M: tl.constexpr = first[0].shape[0]
    column = block * _BLOCK + tl.arange(0, _BLOCK)
    sums = add_product(first, weight, tl.zeros((M, _BLOCK), ACC), PRECISION)
    if K1 > 0:
        sums = add_product(second, weight_1, sums, PRECISION)
    if PRECISION == "halves":
        sums = untruncated(sums, K0 + K1, LOSS) * unit * tl.load(packed[1] + column)[None, :]
    return sums + tl.load(packed[2] + column)[None, :]


@triton.jit
def as_rows(weights):
    """Return weights [M, BLOCK] of a block as [M, ROWS, CHANNELS]."""
    return tl.reshape(weights, (weights.shape[0], _ROWS, _CHANNELS))


@triton.jit
def coupled_rows(
    inputs, sizes, rows_ptr, edges, row, D: tl.constexpr, WIDTH: tl.constexpr, ACC: tl.constexpr
):
    """Return the D components of the ROWS coupled rows from ``row`` on, [M, ROWS] each."""
    edge, live, sender = edges
    rows_ptr += (row + tl.arange(0, _ROWS)) * 3
    column, width, matrix = tl.load(rows_ptr), tl.load(rows_ptr + 1), tl.load(rows_ptr + 2)
    node_ptr = inputs[0] + sender[:, None] * sizes[1] + column[None, :]
    matrix_ptr = inputs[1] + edge[:, None] * sizes[2] + matrix[None, :]
    z = zeros(edge.shape[0], _ROWS, D, ACC)
    for a in tl.static_range(WIDTH):
        mask = live[:, None] & (a < width)[None, :]
        x = tl.load(node_ptr + a, mask, other=0.0).to(ACC)
        sums = ()
        for m in tl.static_range(D):
            c = tl.load(matrix_ptr + a * D + m, mask, other=0.0).to(ACC)
            sums += (z[m] + x * c,)  # type: ignore[assignment]
        z = sums
    return z


@triton.jit
def zeros(M: tl.constexpr, N: tl.constexpr, D: tl.constexpr, ACC: tl.constexpr):
    """Return D blocks [M, N] of zeros."""
    blocks = ()
    for _ in tl.static_range(D):
        blocks += (tl.zeros((M, N), ACC),)  # type: ignore[assignment]
    return blocks


def constants(packed: PackedWeight, plan: Plan) -> dict[str, object]:
    """Return the compile-time constants of kernels, by their names."""
    return {
        "K0": packed.sizes[0],
        "K1": packed.sizes[1],
        "COMPONENTS": plan.components,
        "WIDTH": plan.width,
        "PRECISION": packed.precision,
        "LOSS": loss_of(packed.weight).halves,
        "ACC": accumulator(packed.bias),
    }
