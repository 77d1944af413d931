"""SwiGLU transitions of pairs or tokens.

    x <- x + D (silu(G y) (U y))      y = norm(x)      silu(u) = u sigmoid(u)

The hidden layer stays on chip, unless rows are few and wide.

Source: J. Abramson et al., "Accurate structure prediction of biomolecular interactions with
AlphaFold 3", https://doi.org/10.1038/s41586-024-07487-w, algorithm 11 of the supplement.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.common.blocks import block_side
from mlff_triton.kernels.common.checks import check_shape
from mlff_triton.kernels.common.dense import check_same
from mlff_triton.kernels.common.hardware import has_large_memory, register_limit
from mlff_triton.kernels.numerics.operands import takes_halves, weight_operands
from mlff_triton.kernels.numerics.product import untruncated
from mlff_triton.kernels.numerics.rounding import loss_of
from mlff_triton.kernels.pairs.arguments import FLOATS, check_norm, check_rows, norm_arguments
from mlff_triton.kernels.pairs.row_blocks import (
    add_product,
    add_to_rows,
    chunk,
    gated,
    joined,
    load_chunks,
    multiply_twice,
    normalize,
)
from mlff_triton.kernels.pairs.types import TransitionWeights
from mlff_triton.kernels.pairs.wide_layers import is_wide, wide_transition_

_MOST_CHANNELS = 512


@triton.jit
def _add_hidden(
    acc,
    y,
    weights,
    first,
    EXACT: tl.constexpr,
    HALVES: tl.constexpr,
    LOSS: tl.constexpr,
    CHANNELS: tl.constexpr,
    HIDDEN: tl.constexpr,
    K: tl.constexpr,
):
    """Add the products of the K hidden channels from ``first`` on, of rows y, to ``acc`` [M, C]."""
    # Both are [M, K].
    gate, up = multiply_twice(y, weights[0], first, HIDDEN, CHANNELS, HALVES, LOSS, False, K)
    hidden = gated(gate, gate, EXACT) * up
    return add_product(acc, hidden, weights[1], first, CHANNELS, HIDDEN, HALVES)


@triton.jit
def _transition_fwd_kernel(
    x_ptr,
    norm_weight_ptr,
    norm_bias_ptr,
    inputs_ptr,
    down_ptr,
    n_rows,
    EPS: tl.constexpr,
    HALVES: tl.constexpr,
    LOSS: tl.constexpr,
    CHANNELS: tl.constexpr,
    HIDDEN: tl.constexpr,
    C: tl.constexpr,
    CHUNK: tl.constexpr,
    M: tl.constexpr,
    K: tl.constexpr,
):
    """Add updates to rows x [n_rows, CHANNELS] in place.

    Reads the `joined` weights of gates and factors, [2 HIDDEN, CHANNELS], and ``down`` [CHANNELS,
    HIDDEN], from `weight_operands`. Grid: (blocks of M rows,).
    """
    row = tl.program_id(0).to(tl.int64) * M + tl.arange(0, M)
    offsets, known = row * CHANNELS, row < n_rows
    half: tl.constexpr = inputs_ptr.dtype.element_ty
    EXACT: tl.constexpr = HALVES or half == tl.float32
    x = load_chunks(x_ptr, offsets, known, CHANNELS, C, CHUNK)
    y = normalize(x, norm_weight_ptr, norm_bias_ptr, CHANNELS, half, EPS, HALVES)
    acc = tl.zeros((M, C), tl.float32)
    weights = inputs_ptr, down_ptr
    START: tl.constexpr = 0 if EXACT else K
    if START:  # Outside of the loop, a first product leaves y in registers for the others.
        acc = _add_hidden(acc, y, weights, 0, EXACT, HALVES, LOSS, CHANNELS, HIDDEN, K)
    for first in range(START, HIDDEN, K):
        acc = _add_hidden(acc, y, weights, first, EXACT, HALVES, LOSS, CHANNELS, HIDDEN, K)
    if EXACT:
        acc = untruncated(acc, K, LOSS)
    add_to_rows(acc, x_ptr, offsets, known, CHANNELS)


class Tile(NamedTuple):
    """Block sizes and options of a launch."""

    rows: int
    hidden: int  # channels at a time
    warps: int
    stages: int
    registers: int | None = None

    @classmethod
    def of(cls, block: int, weight: Tensor) -> Tile:
        """Return block sizes for a block of channels, in the dtype and on the GPU of a weight."""
        large, single = has_large_memory(weight), weight.element_size() > 2
        stages = 2 if large and not single else 1
        if block <= 128:
            return cls(64, 64, 4, 1) if large and single else cls(64, 32, 4, stages, 168)
        if single:
            return cls(32 if block <= 256 else 16, 16, 8, 1)
        return cls(64 if block <= 256 else 32, 32, 8, stages)


def transition_(x: Tensor, weights: TransitionWeights) -> Tensor:
    """Update rows by a SwiGLU transition in place, without gradients.

    Parameters
    ----------
    x : [..., C]
        Pairs or tokens, contiguous; float32, or of the dtype of the weights. C is at most 512.
    weights : TransitionWeights
        Weights, float16, bfloat16 or float32, at most 65504. Products have this precision, and sums
        float32.

    Returns
    -------
    [..., C]
        ``x``.

    Raises
    ------
    InputError
        If shapes, dtypes or devices do not fit together, or ``x`` is not contiguous.
    BackendError
        If the tensors are not on a GPU.

    Examples
    --------
    >>> x = torch.randn(1, 7, 7, 16, device="cuda")
    >>> norm = torch.ones(16, device="cuda"), torch.zeros(16, device="cuda"), 1e-5
    >>> maps = (torch.randn(shape, device="cuda") / 8 for shape in ((64, 16), (64, 16), (16, 64)))
    >>> transition_(x, TransitionWeights(norm, *maps)).shape
    torch.Size([1, 7, 7, 16])
    """
    norm, gate, up, down = weights
    check_same(FLOATS, {"gate": gate, "up": up, "down": down})
    check_rows("x", x, up)
    channels = x.shape[-1]
    if channels > _MOST_CHANNELS:
        raise InputError(f"the rows have {channels} channels: use at most {_MOST_CHANNELS}")
    check_norm("norm", norm, x)
    check_shape("up", up, ("K", channels))
    check_shape("gate", gate, up.shape)
    check_shape("down", down, up.shape[::-1])
    if not x.numel():
        return x
    if is_wide(x, len(up)):
        return wide_transition_(x, weights)
    n_rows, block = x[..., 0].numel(), block_side(channels)
    tile, halves = Tile.of(block, up), takes_halves(up)
    with torch.cuda.device_of(x):
        _transition_fwd_kernel[(triton.cdiv(n_rows, tile.rows),)](
            x,
            *norm_arguments(norm),
            *weight_operands(joined(gate, up), down, halves=halves),
            n_rows,
            EPS=norm[2],
            HALVES=halves,
            LOSS=loss_of(up).halves,
            CHANNELS=channels,
            HIDDEN=len(up),
            C=block,
            CHUNK=chunk(block, halves),
            M=tile.rows,
            K=tile.hidden,
            num_warps=tile.warps,
            num_stages=tile.stages,
            **register_limit(tile.registers),
        )
    return x
