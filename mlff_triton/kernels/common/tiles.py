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
    """Return the row and column, in units of tiles, of a tile in grouped order.

    Tiles are numbered down the columns of a group of eight rows, then group by group. Programs that
    run at the same time then share rows and columns of the operands, which stay in the cache.
    """
    first = tile // (ROWS_PER_GROUP * tiles_n) * ROWS_PER_GROUP
    height = tl.minimum(tiles_m - first, ROWS_PER_GROUP)
    within = tile % (ROWS_PER_GROUP * tiles_n)
    return first + within % height, within // height


@triton.jit
def multiply(x, high_ptr, low_ptr, offsets, acc, PRECISION: tl.constexpr):
    """Return ``acc + x w`` for x [M, K] and a block w [K, N] of a `SplitWeight` at ``offsets``.

    "tf32x3" adds three products of TF32 halves, the smallest first. The product of the two low
    halves is below the precision of float32 and left out. The sum of a block starts from zero and
    is added to ``acc`` in float32, because tensor cores round sums toward zero
    (https://doi.org/10.7717/peerj-cs.330). On an H200, a sum of K products loses 0.42 + 0.0096 K
    units in the last place on average. The low halves of the weights make up for this loss at
    K = 32, and the low half of ``x`` makes up for the difference at other K. Other precisions take
    one product, of unsplit values or of high halves.
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
