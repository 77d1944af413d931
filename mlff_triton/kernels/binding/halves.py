"""Products of float32 blocks on tensor cores, each factor as two halves of float16.

    x w = x_high w_high + (x_low w_high + x_high w_low) / 2^11

See `mlff_triton.kernels.common.halves`. All factors, and all results that kernels store as halves,
must be in the range of float16, up to 65504.
"""

from __future__ import annotations

import triton
import triton.language as tl

from mlff_triton.kernels.common.halves import split_halves
from mlff_triton.kernels.types.halves import SCALE

_1_SCALE = tl.constexpr(1 / SCALE)


@triton.jit
def load_halves(x_ptr, row, column, n_rows, SIZE: tl.constexpr):
    """Load float32 values [M, N] from rows and columns of halves [2, n_rows, SIZE]."""
    high = tl.load(x_ptr + row[:, None] * SIZE + column[None, :])
    low = tl.load(x_ptr + (row + n_rows)[:, None] * SIZE + column[None, :])
    return high.to(tl.float32) + low.to(tl.float32) * _1_SCALE


@triton.jit
def store_halves(x, x_ptr, row, column, n_rows, n_live, SIZE: tl.constexpr):
    """Store x [M, N] at rows below ``n_live`` and columns of halves [2, n_rows, SIZE]."""
    high, low = split_halves(x)
    live = (row < n_live)[:, None]
    tl.store(x_ptr + row[:, None] * SIZE + column[None, :], high, live)
    tl.store(x_ptr + (row + n_rows)[:, None] * SIZE + column[None, :], low, live)


@triton.jit
def multiply(x_high, x_low, w_high, w_low, acc, small):
    """Return ``acc + x w`` in two parts, for the halves of x [M, K] and of w [K, N].

    `added` adds the parts. Loops keep them apart, because the second one is scaled, and because
    tensor cores round off less from a sum with fewer terms.
    """
    small = tl.dot(x_low, w_high, small)
    small = tl.dot(x_high, w_low, small)
    return tl.dot(x_high, w_high, acc), small


@triton.jit
def added(acc, small):
    """Add the two parts of a product."""
    return acc + small * _1_SCALE


@triton.jit
def product(
    x_ptr,
    row,
    n_rows,
    weight_ptr,
    column,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    ROUNDS: tl.constexpr = False,
):
    """Compute x w [M, N] for rows of x [2, n_rows, IN] and columns of a weight [2, IN, OUT].

    Both are halves. Products with low halves come first, so that a single accumulator serves all
    three: it is scaled before the products of high halves continue it. Tensor cores truncate sums,
    so with ROUNDS each of these products is rounded to nearest when added.
    """
    low = tl.cast(n_rows, tl.int64) * IN
    inner = tl.arange(0, K)
    x_offsets, weight_offsets = row[:, None] * IN + inner, inner[:, None] * OUT + column[None, :]
    acc = tl.zeros((M, N), tl.float32)
    for start in range(0, 2 * IN, K):
        part = tl.load(x_ptr + tl.where(start < IN, low, -IN) + start + x_offsets)
        w = tl.load(weight_ptr + start * OUT + weight_offsets)  # low halves follow high ones
        acc = tl.dot(part, w, acc)
    acc *= _1_SCALE
    for start in range(0, IN, K):
        w = tl.load(weight_ptr + start * OUT + weight_offsets)
        part = tl.load(x_ptr + start + x_offsets)
        acc = tl.fma(tl.dot(part, w), 1.0, acc) if ROUNDS else tl.dot(part, w, acc)
    return acc
