"""Gradients of the network of the weights, from those of a block of weights [M, BLOCK].

    grad hidden_e = sum_c grad w_e[c] weight[:, c]
    grad weight   = sum_e hidden_e grad w_e

For names and schemes of products, see `mlff_triton.kernels.convolution.edge_blocks`.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common.hardware import multiprocessors
from mlff_triton.kernels.convolution.edge_blocks import add_product, load_packed, transposed
from mlff_triton.kernels.convolution.plan import BLOCK
from mlff_triton.kernels.numerics.product import split_along

_BLOCK = tl.constexpr(BLOCK)
_MAX_SPLITS = 32


@triton.jit
def add_hidden_gradient(
    sums,
    gradient,
    packed,
    block,
    n_columns,
    K0: tl.constexpr,
    K1: tl.constexpr,
    PRECISION: tl.constexpr,
    ACC: tl.constexpr,
):
    """Add what gradients of a block of weights contribute to those of hidden values."""
    first, second = sums
    M: tl.constexpr = gradient.shape[0]
    weight, weight_1 = load_packed(packed, block, n_columns, K0, K1, PRECISION)
    if PRECISION == "halves":
        units = tl.load(packed[1] + block * _BLOCK + tl.arange(0, _BLOCK))
        high, low, unit = split_along(gradient * units[None, :], 1)
        parts = high, low
    else:
        parts, unit = (gradient.to(weight[0].dtype),), 1.0  # type: ignore[assignment]
    zero = tl.zeros((M, K0), ACC)
    first += add_product(parts, transposed(weight, PRECISION), zero, PRECISION) * unit
    if K1 > 0:
        zero_1 = tl.zeros((M, K1), ACC)
        second += add_product(parts, transposed(weight_1, PRECISION), zero_1, PRECISION) * unit
    return first, second


@triton.jit
def store_hidden_gradient(
    sums, out_ptr, edges, split, n_edges, n_hidden, K0: tl.constexpr, K1: tl.constexpr
):
    """Store a part of the gradients of hidden values, [splits, n_edges, n_hidden]."""
    edge, live, _, _ = edges
    row = split.to(tl.int64) * n_edges + edge
    pointers = out_ptr + row[:, None] * n_hidden
    k = tl.arange(0, K0)[None, :]
    tl.store(pointers + k, sums[0], live[:, None] & (k < n_hidden))
    if K1 > 0:
        k_1 = K0 + tl.arange(0, K1)[None, :]
        tl.store(pointers + k_1, sums[1], live[:, None] & (k_1 < n_hidden))


@triton.jit
def add_weight_gradient(
    sums, gradient, inputs, sizes, edges, k, PRECISION: tl.constexpr, ACC: tl.constexpr
):
    """Add what M edges contribute to gradients of a weight [K, BLOCK] and its bias [BLOCK]."""
    total, bias = sums
    edge, live, _, _ = edges
    hidden = tl.load(
        inputs[2] + edge[:, None] * sizes[3] + k[None, :],
        live[:, None] & (k < sizes[3])[None, :],
        other=0.0,
    )  # [M, K]
    if PRECISION == "halves":
        high, low, unit = split_along(tl.trans(hidden), 1)
        high_g, low_g, unit_g = split_along(gradient, 0)
        zero = tl.zeros((k.shape[0], _BLOCK), ACC)
        total += add_product((high, low), (high_g, low_g), zero, PRECISION) * unit * unit_g
    else:
        parts = (tl.trans(hidden),), (gradient.to(hidden.dtype),)
        total = add_product(parts[0], parts[1], total, PRECISION)
    return total, bias + tl.sum(gradient, 0)


@triton.jit
def store_weight_gradient(sums, out_ptr, bias_ptr, block, k, n_hidden, n_columns):
    """Store a part of the gradients of weights [splits, n_hidden, n_columns] and of the bias."""
    total, bias = sums
    column = block * _BLOCK + tl.arange(0, _BLOCK)
    split = tl.program_id(1).to(tl.int64)
    pointers = out_ptr + (split * n_hidden + k[:, None]) * n_columns + column[None, :]
    tl.store(pointers, total, (k < n_hidden)[:, None])
    if tl.program_id(2) == 0:
        tl.store(bias_ptr + split * n_columns + column, bias)


def splits_of(units: int, others: int, x: Tensor) -> int:
    """Return among how many programs to divide units of work, given the number of programs."""
    wanted = triton.cdiv(2 * multiprocessors(x.device), max(others, 1))
    return max(1, min(units, wanted, _MAX_SPLITS))
