"""Rows that are stored as "shifted_halves", [2, rows, columns], and products with them.

All values must be in the range of float16, up to 65504: see `mlff_triton.kernels.numerics.split`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from mlff_triton.kernels.numerics.product import split
from mlff_triton.kernels.numerics.split import SHIFT

_1_SHIFT = tl.constexpr(1 / SHIFT)


@triton.jit
def load_stored(x_ptr, row, column, n_rows, SIZE: tl.constexpr):
    """Load float32 values [M, N] from rows and columns of halves [2, n_rows, SIZE]."""
    high = tl.load(x_ptr + row[:, None] * SIZE + column[None, :])
    low = tl.load(x_ptr + (row + n_rows)[:, None] * SIZE + column[None, :])
    return high.to(tl.float32) + low.to(tl.float32) * _1_SHIFT


@triton.jit
def store_split(x, x_ptr, row, column, n_rows, n_live, SIZE: tl.constexpr):
    """Store x [M, N] at rows below ``n_live`` and columns of halves [2, n_rows, SIZE]."""
    high, low = split(x, "shifted_halves")
    live = (row < n_live)[:, None]
    tl.store(x_ptr + row[:, None] * SIZE + column[None, :], high, live)
    tl.store(x_ptr + (row + n_rows)[:, None] * SIZE + column[None, :], low, live)


@triton.jit
def multiply_stored(
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
    acc *= _1_SHIFT
    for start in range(0, IN, K):
        w = tl.load(weight_ptr + start * OUT + weight_offsets)
        part = tl.load(x_ptr + start + x_offsets)
        acc = tl.fma(tl.dot(part, w), 1.0, acc) if ROUNDS else tl.dot(part, w, acc)
    return acc
