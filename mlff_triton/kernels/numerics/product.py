"""Products of float32 blocks inside kernels, as exact as float32 arithmetic.

    x w = x_high w_high + (x_low w_high + x_high w_low)

A kernel names a scheme, PRECISION, which its launcher has from `scheme_of`. Those that split
operands into two parts are defined in `mlff_triton.kernels.numerics.split`. Any other one is a
precision of `tl.dot`, such as "ieee" or "bf16x6", which multiplies unchanged operands.

Operands are tuples of parts: of one block, or of the blocks of high and of low parts. Tensor cores
round sums toward zero (https://doi.org/10.7717/peerj-cs.330), so sums over long axes are added in
float32, one block after another.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.numerics.split import EXPONENT, SHIFT, WEIGHT_SCALE, SplitWeight

_SHIFT = tl.constexpr(SHIFT)
_1_SHIFT = tl.constexpr(1 / SHIFT)
_WEIGHT_SCALE = tl.constexpr(WEIGHT_SCALE)
_1_WEIGHT_SCALE = tl.constexpr(1 / WEIGHT_SCALE)
_EXPONENT_BITS = tl.constexpr(0x7F800000)
_SMALLEST = tl.constexpr(1 << 23)  # of these bits, of a normal number
_LARGEST = tl.constexpr(254 << 23)
_UNIT_BITS = tl.constexpr(EXPONENT << 23)

FULL = tl.constexpr(
    "ieee" if torch.version.hip is not None or triton.knobs.runtime.interpret else "bf16x6"
)
"""Precision of `tl.dot` that holds all bits of float32.

Three parts in bfloat16 do so on NVIDIA's tensor cores, with smaller errors than sums one by one.
"""


def exact_precision(x: Tensor) -> str:
    """Return the fastest precision of `tl.dot` that is as exact as float32 arithmetic."""
    split = x.dtype == torch.float32 and torch.version.hip is None
    return "tf32x3" if split else "ieee"


def scheme_of(weight: Tensor | SplitWeight, x: Tensor) -> str:
    """Return the ``PRECISION`` with which `multiply` applies a weight to values like x.

    Weights in float16 are from `split_weight` if x is float32.
    """
    if isinstance(weight, Tensor):
        is_split = weight.dtype == torch.float16 and x.dtype == torch.float32
        return "fixed_halves" if is_split else exact_precision(x)
    exact = exact_precision(weight.weight)
    return "tf32" if weight.tf32 and exact == "tf32x3" else exact


def operands(weight: SplitWeight) -> tuple[Tensor, Tensor]:
    """Return the parts of a weight for `load_split`; the weight twice if it is not split."""
    if exact_precision(weight.weight) == "ieee":
        return weight.weight, weight.weight
    return weight.high, weight.low


@triton.jit
def split(x, PRECISION: tl.constexpr):
    """Return the high and the low parts of float32 values, divided by their unit.

    Values larger than 65504 become infinite in halves, so that products with them are infinite or
    NaN.
    """
    if PRECISION == "tf32x3":
        high = ((x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
        low = x - high
    else:
        high = x.to(tl.float16)
        low = x - high.to(tl.float32)
        if PRECISION == "shifted_halves":
            low *= _SHIFT
        low = low.to(tl.float16)
    return high, low


@triton.jit
def split_along(x, AXIS: tl.constexpr):
    """Return "halves" of a block, high and low parts, and their units along an axis.

    The axis of the units has the size 1. Rows with values that are not finite become NaN.
    """
    return split_below(x, tl.max(tl.abs(x), AXIS, keep_dims=True))


@triton.jit
def split_below(x, largest):
    """Return "halves" of a block as `split_along` does, given the largest absolute values."""
    exponent = largest.to(tl.int32, bitcast=True) & _EXPONENT_BITS
    unit = tl.maximum(exponent - _UNIT_BITS, _SMALLEST).to(tl.float32, bitcast=True)
    high, low = split(x * inverse(unit), "halves")
    return high, low, unit


@triton.jit
def inverse(unit):
    """Return the inverse of units, which are powers of two."""
    return (-unit.to(tl.int32, bitcast=True) + _LARGEST).to(tl.float32, bitcast=True)


@triton.jit
def split_scaled(x):
    """Return "shifted_halves" of rows [M, K], high and low parts, and their units [M].

    The largest value of a row is between one and two units. Rows with values that are not finite
    become infinite or NaN.
    """
    largest = tl.max(tl.abs(x).to(tl.int32, bitcast=True), 1)
    exponent = tl.minimum(tl.maximum(largest >> 23, 1), 253)
    scale = ((254 - exponent) << 23).to(tl.float32, bitcast=True)
    unit = (exponent << 23).to(tl.float32, bitcast=True)
    high, low = split(x * scale[:, None], "shifted_halves")
    return high, low, unit


@triton.jit
def load(pointers, mask, n_rows, n_columns, PRECISION: tl.constexpr):
    """Load the parts of a block of an operand [n_rows, n_columns], or [2, ...] if it is split.

    The pointers refer to the high parts. The mask may be None.
    """
    other: tl.constexpr = None if mask is None else 0.0
    high = tl.load(pointers, mask, other)
    if PRECISION == "halves" or PRECISION == "fixed_halves" or PRECISION == "shifted_halves":
        parts = high, tl.load(pointers + n_rows * n_columns, mask, other)
    else:
        parts = (high,)  # type: ignore[assignment]
    return parts


@triton.jit
def load_split(high_ptr, low_ptr, offsets, PRECISION: tl.constexpr):
    """Load the parts of a `SplitWeight` at offsets."""
    high = tl.load(high_ptr + offsets)
    return (high, tl.load(low_ptr + offsets)) if PRECISION == "tf32x3" else (high,)


@triton.jit
def product(x, y, PRECISION: tl.constexpr, acc=None):
    """Return ``acc + x y`` for one part or the halves of x [M, K] and y [K, N].

    The smallest terms come first. Units of "halves" and "fixed_halves" are left to the caller, and
    "shifted_halves" take no ``acc``.
    """
    if len(x) == 1:
        acc = tl.dot(x[0], y[0], acc, input_precision=PRECISION)
    else:
        acc = tl.dot(x[0], y[1], tl.dot(x[1], y[0], acc))
        if PRECISION == "shifted_halves":
            acc *= _1_SHIFT
        acc = tl.dot(x[0], y[0], acc)
    return acc


@triton.jit
def multiply(x, weight, acc, PRECISION: tl.constexpr, LOSS: tl.constexpr = 0.0):
    """Return ``acc + x w`` for x [M, K] and the parts of a weight [K, N].

    If the weight has two parts, x is split, too; otherwise, it is rounded to the weight's dtype.
    PRECISION is any scheme but "shifted_halves". Sums are in the unit of the weight, for which see
    `begin_sum` and `end_sum`.

    With "tf32x3", the sum of a block starts from zero and is added to ``acc`` in float32. The low
    parts of the weights make up for the loss of such a sum if K is 32, and the low part of ``x``
    for the difference at other K, LOSS units in the last place per product: see
    `mlff_triton.kernels.numerics.rounding`.
    """
    if len(weight) == 1:
        x = x.to(weight[0].dtype)
        acc = tl.dot(x, weight[0], acc, input_precision=PRECISION, out_dtype=acc.dtype)
    elif PRECISION == "tf32x3":
        high, low = split(x, PRECISION)
        missing: tl.constexpr = LOSS * (x.shape[1] - 32) * 2.0**-23
        if missing != 0:
            low += missing * x
        block = tl.dot(low, weight[0], input_precision="tf32")
        block = tl.dot(high, weight[1], block, input_precision="tf32")
        acc += tl.dot(high, weight[0], block, input_precision="tf32")
    elif PRECISION == "fixed_halves":
        acc = product(split(x, PRECISION), weight, PRECISION, acc)
    else:
        high, low, unit = split_along(x, 1)
        acc += product((high, low), weight, PRECISION) * unit
    return acc


@triton.jit
def begin_sum(x, PRECISION: tl.constexpr):
    """Convert a block to the unit in which `multiply` adds."""
    if PRECISION == "fixed_halves":
        x *= _WEIGHT_SCALE
    return x


@triton.jit
def end_sum(acc, PRECISION: tl.constexpr):
    """Convert a sum from the unit in which `multiply` adds."""
    if PRECISION == "fixed_halves":
        acc *= _1_WEIGHT_SCALE
    return acc


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
    """Load a part [K, N] of a weight [n_in, n_out], or [2, n_in, n_out] if it is split."""
    k, n = row + tl.arange(0, K), column + tl.arange(0, N)
    pointers = weight_ptr + k[:, None] * n_out + n[None, :]
    return load(pointers, None, n_in, n_out, PRECISION)


@triton.jit
def add_linear(x, weight_ptr, acc, n_in, n_out, row, column, PRECISION: tl.constexpr):
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


@triton.jit
def product_terms(x, y, low=None):
    """Return two terms of the product of "shifted_halves", the second of which may go on from one.

    They are the product of the high parts, and the sum of those with low parts, which is scaled.
    Sums with low parts stay on tensor cores: they are too small for truncation to show.
    """
    low = tl.dot(x[0], y[1], tl.dot(x[1], y[0], low))
    return tl.dot(x[0], y[0]), low


@triton.jit
def add_terms(sums, x, y):
    """Add the terms of a product of "shifted_halves" to sums of many, those of high parts rounded.

    Triton would move a plain addition of products of high parts to tensor cores.
    """
    high, low = product_terms(x, y, sums[1])
    return tl.fma(high, 1.0, sums[0]), low


@triton.jit
def total(terms):
    """Return the values of terms from `product_terms`."""
    return tl.fma(terms[1], _1_SHIFT, terms[0])


@triton.jit
def untruncated(sums, K: tl.constexpr, LOSS: tl.constexpr):
    """Restore what sums of K products of halves lose on average, LOSS from `loss_of`."""
    FRACTION: tl.constexpr = LOSS[0] if K <= 32 else LOSS[1] if K <= 64 else LOSS[2]
    if FRACTION != 0:
        sums = tl.fma(sums, FRACTION, sums)
    return sums
