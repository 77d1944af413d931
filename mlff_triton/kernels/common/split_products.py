"""Products with weights that may be split into halves of float16, on tensor cores.

    x w = (x_low w_high + x_high w_low + x_high w_high) / 2^8

The product of both low halves is left out, as it is below the precision of float32: see
`mlff_triton.kernels.types.halves.split_scaled_halves`. Other weights are multiplied as they are.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common import hardware
from mlff_triton.kernels.types.halves import WEIGHT_SCALE

_UNIT = tl.constexpr(WEIGHT_SCALE)
_1_UNIT = tl.constexpr(1 / WEIGHT_SCALE)


@triton.jit
def load_weight(
    weight_ptr,
    n_in,
    n_out,
    row,
    column,
    PRECISION: tl.constexpr,
    K: tl.constexpr,
    N: tl.constexpr,
):
    """Load a part [K, N] of a weight [n_in, n_out] for `multiply`, two blocks.

    With "halves", these are the halves of `split_scaled_halves`. Otherwise they are the same.
    """
    k, n = row + tl.arange(0, K), column + tl.arange(0, N)
    pointers = weight_ptr + k[:, None] * n_out + n[None, :]
    high = tl.load(pointers)
    low = high
    if PRECISION == "halves":
        low = tl.load(pointers + n_in * n_out)
    return high, low


@triton.jit
def multiply(x, weight, acc, PRECISION: tl.constexpr):
    """Return ``acc + x w`` for x [M, K] and the two blocks of a weight [K, N].

    With "halves", sums are in another unit, see `begin_sum`. Then x is split too, and the product
    of both low halves is left out. Otherwise x is rounded to the weight's dtype.
    """
    if PRECISION == "halves":
        high = x.to(tl.float16)
        low = (x - high.to(x.dtype)).to(tl.float16)
        acc = tl.dot(low, weight[0], acc)
        acc = tl.dot(high, weight[1], acc)
        acc = tl.dot(high, weight[0], acc)
    else:
        x = x.to(weight[0].dtype)
        acc = tl.dot(x, weight[0], acc, input_precision=PRECISION, out_dtype=acc.dtype)
    return acc


@triton.jit
def begin_sum(x, PRECISION: tl.constexpr):
    """Convert a block to the unit in which `multiply` adds."""
    if PRECISION == "halves":
        x *= _UNIT
    return x


@triton.jit
def end_sum(acc, PRECISION: tl.constexpr):
    """Convert a sum from the unit in which `multiply` adds."""
    if PRECISION == "halves":
        acc *= _1_UNIT
    return acc


@triton.jit
def linear(x, weight_ptr, acc, n_in, n_out, row, column, PRECISION: tl.constexpr):
    """Do the same as `multiply` with a part of a weight, which begins at a row and a column."""
    K: tl.constexpr = x.shape[1]
    N: tl.constexpr = acc.shape[1]
    weight = load_weight(weight_ptr, n_in, n_out, row, column, PRECISION, K, N)
    return multiply(x, weight, acc, PRECISION)


@triton.jit
def bias_sum(
    bias_ptr,
    column,
    dtype: tl.constexpr,
    PRECISION: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
):
    """Begin the sum of a linear map with a part [N] of its bias, for a block [M, N]."""
    bias = begin_sum(tl.load(bias_ptr + column + tl.arange(0, N)).to(dtype), PRECISION)
    return tl.zeros((M, N), dtype) + bias[None, :]


def precision_of(weight: Tensor, x: Tensor) -> str:
    """Return the ``PRECISION`` with which `multiply` applies a weight to values like x."""
    is_split = weight.dtype == torch.float16 and x.dtype == torch.float32
    return "halves" if is_split else hardware.exact_precision(x)
