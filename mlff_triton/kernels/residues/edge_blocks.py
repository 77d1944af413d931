"""Blocks of edges in kernels of graph networks over residues."""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common import hardware
from mlff_triton.kernels.common.activations import activate
from mlff_triton.kernels.numerics.product import add_linear, begin_sum, bias_sum, end_sum

ROOM = 160 * hardware.KIB
"""Shared memory above which two programs with large blocks fit on a multiprocessor."""


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

    Takes edges [M, C], and the rows [M] of their receivers and senders. Reads the residues' parts
    of the first map as receivers and senders, and the weights of the first two maps.
    """
    columns = tl.arange(0, C)
    hidden = tl.load(
        receivers_ptr + receivers[:, None] * C + columns[None, :], mask[:, None], other=0.0
    )
    hidden += tl.load(
        senders_ptr + sources[:, None] * C + columns[None, :], mask[:, None], other=0.0
    )
    acc = begin_sum(hidden.to(edges.dtype), PRECISION)
    hidden = end_sum(add_linear(edges, first_ptr, acc, C, C, 0, 0, PRECISION), PRECISION)
    hidden = activate(hidden, "gelu")
    acc = bias_sum(second_bias_ptr, 0, edges.dtype, PRECISION, edges.shape[0], C)
    hidden = end_sum(add_linear(hidden, second_ptr, acc, C, C, 0, 0, PRECISION), PRECISION)
    return activate(hidden, "gelu")


class Block(NamedTuple):
    """Rows of a block, and warps of its program."""

    rows: int
    warps: int


def has_room(tensor: Tensor) -> bool:
    """Return True on GPUs whose shared memory suffices for large blocks."""
    return hardware.shared_memory(tensor) > ROOM


def block_of(tensor: Tensor) -> Block:
    """Return the block of edges for the GPU of a tensor."""
    return Block(64 if has_room(tensor) else 32, 4)
