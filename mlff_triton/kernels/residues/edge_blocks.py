"""Blocks of edges in kernels of graph networks over residues."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common import hardware
from mlff_triton.kernels.common.activations import activate
from mlff_triton.kernels.types.halves import WEIGHT_SCALE

ROOM = 160 * hardware.KIB
"""Shared memory with which two programs with large blocks share a multiprocessor."""

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


@triton.jit
def layer_norm(x, weight_ptr, bias_ptr, eps):
    """Normalize rows [M, C]."""
    columns = tl.arange(0, x.shape[1])
    centered = x - (tl.sum(x, 1) / x.shape[1])[:, None]
    variance = tl.sum(centered * centered, 1) / x.shape[1]
    y = centered * (1 / tl.sqrt((variance + eps).to(x.dtype)))[:, None]
    return y * tl.load(weight_ptr + columns)[None, :] + tl.load(bias_ptr + columns)[None, :]


@triton.jit
def edge_hidden(
    edges,
    receivers_ptr,
    senders_ptr,
    receivers,
    sources,
    mask,
    first_ptr,
    second_ptr,
    second_bias_ptr,
    PRECISION: tl.constexpr,
    C: tl.constexpr,
):
    """Compute the second hidden values [M, C] of a network of edges.

    Takes edges [M, C], and the row of each one's receiver and sender [M]. Reads the parts of
    receivers and senders in the first map, and the weights of the first two maps.
    """
    columns = tl.arange(0, C)
    hidden = tl.load(
        receivers_ptr + receivers[:, None] * C + columns[None, :], mask[:, None], other=0.0
    )
    hidden += tl.load(
        senders_ptr + sources[:, None] * C + columns[None, :], mask[:, None], other=0.0
    )
    acc = begin_sum(hidden.to(edges.dtype), PRECISION)
    hidden = end_sum(linear(edges, first_ptr, acc, C, C, 0, 0, PRECISION), PRECISION)
    hidden = activate(hidden, "gelu")
    acc = bias_sum(second_bias_ptr, 0, edges.dtype, PRECISION, edges.shape[0], C)
    hidden = end_sum(linear(hidden, second_ptr, acc, C, C, 0, 0, PRECISION), PRECISION)
    return activate(hidden, "gelu")


class Block(NamedTuple):
    """Rows of a block, and warps of its program."""

    rows: int
    warps: int


def has_room(tensor: Tensor) -> bool:
    """Return True on GPUs whose shared memory suffices for large blocks."""
    return hardware.shared_memory(tensor) > ROOM


def block_of(tensor: Tensor) -> Block:
    """Return the block of edges on the GPU of a tensor."""
    return Block(64 if has_room(tensor) else 32, 4)
