"""Tiles of matrix products: the order of programs, and products with split weights."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common.hardware import exact_precision
from mlff_triton.kernels.types.split_weight import SplitWeight

ROWS_PER_GROUP = tl.constexpr(8)


@triton.jit
def tile_in_group(tile, tiles_m, tiles_n):
    """Row and column, in tiles, of a tile of the result, for grids of ``tiles_m * tiles_n`` tiles.

    Tiles are numbered down the columns of a group of eight rows, then group by group. Programs that
    run at the same time thus share rows and columns of the operands, which stay in the cache.
    """
    first = tile // (ROWS_PER_GROUP * tiles_n) * ROWS_PER_GROUP
    height = tl.minimum(tiles_m - first, ROWS_PER_GROUP)
    within = tile % (ROWS_PER_GROUP * tiles_n)
    return first + within % height, within // height


@triton.jit
def multiply(x, high_ptr, low_ptr, offsets, acc, PRECISION: tl.constexpr):
    """``acc + x w`` for blocks [M, K] and [K, N] of a `Map`, whose weights lie at ``offsets``.

    With "tf32x3", products of TF32 halves, the smallest first; their own low halves' product is
    beyond float32. A block is summed from zero and then added as float32 numbers are, since tensor
    cores round sums towards zero (https://doi.org/10.7717/peerj-cs.330). On an H200 a sum of K
    products loses 0.42 + 0.0096 K units in the last place on average: the weights' low halves hold
    that much more for K = 32, those of ``x`` what is missing for others. Otherwise one product, of
    whole numbers or of high halves.
    """
    high = tl.load(high_ptr + offsets)
    if PRECISION == "tf32x3":
        low = tl.load(low_ptr + offsets)
        x_high = ((x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
        x_low = x - x_high
        missing: tl.constexpr = 0.0096 * (x.shape[1] - 32) * 2.0**-23
        if missing != 0:
            x_low += missing * x
        block = tl.dot(x_low, high, input_precision="tf32")
        block = tl.dot(x_high, low, block, input_precision="tf32")
        block = tl.dot(x_high, high, block, input_precision="tf32")
        acc += block
    else:
        acc = tl.dot(x, high, acc, input_precision=PRECISION, out_dtype=acc.dtype)
    return acc


def precision_of(weight: SplitWeight) -> str:
    """Return the ``PRECISION`` with which `multiply` applies a weight."""
    precision = exact_precision(weight.weight)
    return "tf32" if weight.tf32 and precision == "tf32x3" else precision


def operands(weight: SplitWeight) -> tuple[Tensor, Tensor]:
    """Return the halves of a weight that `multiply` reads; the weight twice if it is not split."""
    if precision_of(weight) == "ieee":
        return weight.weight, weight.weight
    return weight.high, weight.low
