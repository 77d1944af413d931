"""Gradients of the network that makes the weights, from those of a block of weights [M, BLOCK].

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
    """Add the contributions of a block of weights to the gradients of hidden values."""
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
    """Store one part of the gradients of hidden values, [splits, n_edges, n_hidden]."""
    edge, live, _ = edges
    row = split.to(tl.int64) * n_edges + edge
    pointers = out_ptr + row[:, None] * n_hidden
    k = tl.arange(0, K0)[None, :]
    tl.store(pointers + k, sums[0], live[:, None] & (k < n_hidden))
    if K1 > 0:
        k_1 = K0 + tl.arange(0, K1)[None, :]
        tl.store(pointers + k_1, sums[1], live[:, None] & (k_1 < n_hidden))


@triton.jit
def zero_weight_gradient(K0: tl.constexpr, K1: tl.constexpr, ACC: tl.constexpr):
    """Return zeros for gradients of a block of weights, [K0, BLOCK] and [K1, BLOCK], and bias."""
    second = tl.zeros((K1 if K1 > 0 else 16, _BLOCK), ACC)
    return tl.zeros((K0, _BLOCK), ACC), second, tl.zeros((_BLOCK,), ACC)


@triton.jit
def add_weight_gradient(
    sums,
    gradient,
    inputs,
    sizes,
    edges,
    K0: tl.constexpr,
    K1: tl.constexpr,
    PRECISION: tl.constexpr,
    ACC: tl.constexpr,
):
    """Add the contributions of M edges to the gradients of a block of weights and its bias."""
    first, second, bias = sums
    if PRECISION == "halves":
        high, low, unit = split_along(gradient, 0)
        parts = high, low
    else:
        parts, unit = (gradient,), 1.0  # type: ignore[assignment]
    first = _add_outer(first, parts, unit, inputs, sizes, edges, 0, K0, PRECISION, ACC)
    if K1 > 0:
        second = _add_outer(second, parts, unit, inputs, sizes, edges, K0, K1, PRECISION, ACC)
    return first, second, bias + tl.sum(gradient, 0)


@triton.jit
def _add_outer(
    sums,
    parts,
    unit,
    inputs,
    sizes,
    edges,
    start: tl.constexpr,
    K: tl.constexpr,
    PRECISION: tl.constexpr,
    ACC: tl.constexpr,
):
    """Add products [K, BLOCK] of K hidden values from ``start`` on and the gradients of a block."""
    edge, live, _ = edges
    k = start + tl.arange(0, K)
    hidden = tl.load(
        inputs[2] + edge[:, None] * sizes[3] + k[None, :],
        live[:, None] & (k < sizes[3])[None, :],
        other=0.0,
    )  # [M, K]
    if PRECISION == "halves":
        high, low, unit_k = split_along(tl.trans(hidden), 1)
        zero = tl.zeros((K, _BLOCK), ACC)
        sums += add_product((high, low), parts, zero, PRECISION) * unit_k * unit
    else:
        others = (parts[0].to(hidden.dtype),)
        sums = add_product((tl.trans(hidden),), others, sums, PRECISION)
    return sums


@triton.jit
def store_weight_gradient(
    sums, out_ptr, bias_ptr, block, n_hidden, n_columns, K0: tl.constexpr, K1: tl.constexpr
):
    """Store one part of the gradients of weights [splits, n_hidden, n_columns] and of the bias."""
    first, second, bias = sums
    column = block * _BLOCK + tl.arange(0, _BLOCK)
    split = tl.program_id(1).to(tl.int64)
    out_ptr += split * n_hidden * n_columns + column[None, :]
    k = tl.arange(0, K0)[:, None]
    tl.store(out_ptr + k * n_columns, first, k < n_hidden)
    if K1 > 0:
        k_1 = K0 + tl.arange(0, K1)[:, None]
        tl.store(out_ptr + k_1 * n_columns, second, k_1 < n_hidden)
    tl.store(bias_ptr + split * n_columns + column, bias)


def splits_of(units: int, others: int, x: Tensor) -> int:
    """Return the number of splits of ``units`` of work, with ``others`` programs per split."""
    wanted = triton.cdiv(2 * multiprocessors(x.device), max(others, 1))
    return max(1, min(units, int(wanted), _MAX_SPLITS))
