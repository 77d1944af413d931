"""Softmax over blocks of keys, and rows of heads, for the attention kernels.

    p_j = exp(s_j - max_k s_k)      out = sum_j p_j v_j / sum_j p_j

A kernel loops over the keys once, block by block. It keeps the largest score so far, and sums
weights and weighted values relative to it. When the largest score grows, these sums are rescaled
(T. Dao et al., "FlashAttention", https://arxiv.org/abs/2205.14135).

Each kernel computes its own scores and sums. Operands are read through pointers or descriptors,
unchanged or as halves. Biases are the initial value of a product, a product of their own, or added
later. Some sums have units, and others have columns in a second block. A common loop would need an
option for each of these.
"""

from __future__ import annotations

import triton
import triton.language as tl

from mlff_triton.kernels.numerics.exponential import exp_of_scores


@triton.jit
def load_rows(ptr, row, stride, known, first, WIDTH: tl.constexpr, D: tl.constexpr):
    """Load columns [first, first + D) of rows, zero from WIDTH on and where not ``known``."""
    column = first + tl.arange(0, D)
    mask = known[:, None] & (column < WIDTH)[None, :]
    return tl.load(ptr + row.to(tl.int64)[:, None] * stride + column[None, :], mask, other=0.0)


@triton.jit
def store_rows(ptr, rows, row, stride, known, first, WIDTH: tl.constexpr, D: tl.constexpr):
    """Store columns [first, first + D) of rows, except from WIDTH on."""
    column = first + tl.arange(0, D)
    mask = known[:, None] & (column < WIDTH)[None, :]
    pointers = ptr + row.to(tl.int64)[:, None] * stride + column[None, :]
    tl.store(pointers, rows.to(ptr.dtype.element_ty), mask)


@triton.jit
def level_of(highest):
    """Return the numbers to subtract from scores: the largest scores, or 0 where all are masked."""
    return tl.where(highest == float("-inf"), 0.0, highest)


@triton.jit
def exponentials(scores, EXACT: tl.constexpr):
    """Return powers of two, or powers of e to the last bits of float32 if EXACT."""
    return exp_of_scores(scores) if EXACT else tl.exp2(scores)


@triton.jit
def weigh(
    scores,
    peak,
    UNIT: tl.constexpr = 1.0,
    MAY_BE_MASKED: tl.constexpr = False,
    EXACT: tl.constexpr = False,
    LARGEST: tl.constexpr = 0.0,
):
    """Return weights [M, N] of a block of keys, the factor [M] of earlier sums, and the new peak.

    Parameters
    ----------
    scores : [M, N]
        Minus infinity for masked keys.
    peak : [M]
        Largest score so far, minus infinity at first.
    UNIT : float
        Factor that makes scores exponents of two, fused with the subtraction of the largest one.
    MAY_BE_MASKED : bool
        True if all keys up to here may be masked, which gives NaN otherwise.
    EXACT : bool
        Take scores as exponents of e, and weights to the last bits of float32.
    LARGEST : float
        Logarithm to base two of the largest weight.
    """
    highest = tl.maximum(peak, tl.max(scores, 1) * UNIT)
    level = level_of(highest) if MAY_BE_MASKED else highest
    weights = exponentials(scores * UNIT - (level - LARGEST)[:, None], EXACT)
    return weights, exponentials(peak - level, EXACT), highest


@triton.jit
def mean_of_values(sums, total, EXACT: tl.constexpr):
    """Divide sums of weighted values [M, D] by sums of weights [M]; zero for rows without keys."""
    total = tl.where(total > 0, total, 1.0)[:, None]
    return tl.div_rn(sums, total) if EXACT else sums / total
