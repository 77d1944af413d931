"""Pooling of pairs of rows with attention, and the pointwise convolution before it.

The softmax over two logits that are linear in the rows is a sigmoid of their difference:

    y = W0 x + b + residual
    m_i = (y_2i + y_2i+1) / 2        h_i = (y_2i - y_2i+1) / 2
    pooled_i = sum_j softmax_j(W y_j) y_j = m_i + h_i tanh(W h_i)        j in {2i, 2i+1}

So the convolution stores means and half differences, and pooling takes half as many products as
computing the logits would. A pair of rows is read as one row of twice as many channels.

Source: Ž. Avsec et al., "Effective gene expression prediction from sequence by integrating
long-range interactions", https://doi.org/10.1038/s41592-021-01252-x.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common import hardware
from mlff_triton.kernels.common.early_launch import allow_next, early_launch, wait_for_previous
from mlff_triton.kernels.genomics.sequence_tiles import (
    HALF,
    SMALL,
    Launch,
    Tile,
    column_parts,
    count_tiles,
    describe,
    describe_weight,
    load_block,
    locate,
    store_block,
    store_rows,
)
from mlff_triton.kernels.genomics.types import Activated, Activation
from mlff_triton.kernels.numerics.exponential import LOG2_E

_TANH_EXPONENT = tl.constexpr(2 * LOG2_E.value)  # times log2(e), for exp2


@triton.jit
def _paired_rows_kernel(
    x,
    weight,
    residual,
    mean,
    difference,
    bias_ptr,
    n_sequences,
    n_pairs,
    n_out,
    n_in,
    PROGRAMS: tl.constexpr,
    DESCRIBED: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
    PARTS: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
):
    """Write means and half differences [n_sequences, n_pairs, n_out].

    Reads x [n_sequences, n_pairs, 2 n_in], the residual [n_sequences, n_pairs, 2 n_out] or None,
    and weight [n_out, n_in]; for all of these, see `describe`. The bias is [n_out]. Grid:
    (PROGRAMS,).
    """
    allow_next(EARLY_LAUNCH)
    wait_for_previous(EARLY_LAUNCH)
    W: tl.constexpr = N // PARTS
    x = describe(x, n_sequences, n_pairs, 2 * n_in, 2 * n_in, DESCRIBED, M, K)
    weight = describe_weight(weight, n_out, n_in, DESCRIBED, N, K)
    residual = describe(residual, n_sequences, n_pairs, 2 * n_out, 2 * n_out, DESCRIBED, M, W)
    mean = describe(mean, n_sequences, n_pairs, n_out, n_out, DESCRIBED, M, W)
    difference = describe(difference, n_sequences, n_pairs, n_out, n_out, DESCRIBED, M, W)
    n_tiles = count_tiles(n_sequences, n_pairs, n_out, M, N)
    for tile in tl.range(tl.program_id(0), n_tiles, PROGRAMS, flatten=True):
        batch, row, column = locate(tile, n_sequences, n_pairs, n_out, M, N)
        even = tl.zeros((M, N), tl.float32)
        odd = tl.zeros((M, N), tl.float32)
        for k in range(0, n_in, K):
            block = weight.load([column, k]).T
            even = tl.dot(load_block(x, batch, row, k), block, even)
            odd = tl.dot(load_block(x, batch, row, n_in + k), block, odd)
        even_parts, odd_parts = column_parts(even, PARTS), column_parts(odd, PARTS)
        for part in tl.static_range(PARTS):
            first = column + part * W
            columns = first + tl.arange(0, W)
            bias = tl.load(bias_ptr + columns, columns < n_out, other=0.0).to(tl.float32)[None, :]
            y, z = even_parts[part], odd_parts[part]
            if residual is not None:
                y += load_block(residual, batch, row, first).to(tl.float32)
                z += load_block(residual, batch, row, n_out + first).to(tl.float32)
            store_block(mean, batch, row, first, (y + z) * 0.5 + bias)
            store_block(difference, batch, row, first, (y - z) * 0.5)


@triton.jit
def _tanh(x):
    """Return the hyperbolic tangent, with an absolute error like that of float32 rounding.

    It takes fewer instructions than the one in `mlff_triton.kernels.common.activations`.
    """
    return 1 - 2 / (1 + tl.exp2(tl.minimum(_TANH_EXPONENT * x, 126.0)))


@triton.jit
def _attention_pool_kernel(
    mean,
    difference,
    difference_part,
    weight,
    y,
    activated,
    scale_ptr,
    shift_ptr,
    n_sequences,
    n_pairs,
    channels,
    PROGRAMS: tl.constexpr,
    DESCRIBED: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
    PARTS: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
):
    """Write pooled rows y and activated [n_sequences, n_pairs, channels].

    Reads means and half differences of the same shape, the differences as operands and as parts of
    a tile, and weight [channels, channels]; for all of these, see `describe`. Scale and shift are
    [channels]. Grid: (PROGRAMS,).
    """
    allow_next(EARLY_LAUNCH)
    wait_for_previous(EARLY_LAUNCH)
    W: tl.constexpr = N // PARTS
    mean = describe(mean, n_sequences, n_pairs, channels, channels, DESCRIBED, M, W)
    operand = describe(difference, n_sequences, n_pairs, channels, channels, DESCRIBED, M, K)
    difference_part = describe(
        difference_part, n_sequences, n_pairs, channels, channels, DESCRIBED, M, W
    )
    weight = describe_weight(weight, channels, channels, DESCRIBED, N, K)
    y = describe(y, n_sequences, n_pairs, channels, channels, DESCRIBED, M, W)
    activated = describe(activated, n_sequences, n_pairs, channels, channels, DESCRIBED, M, W)
    n_tiles = count_tiles(n_sequences, n_pairs, channels, M, N)
    for tile in tl.range(tl.program_id(0), n_tiles, PROGRAMS, flatten=True):
        batch, row, column = locate(tile, n_sequences, n_pairs, channels, M, N)
        acc = tl.zeros((M, N), tl.float32)
        for k in range(0, channels, K):
            block = load_block(operand, batch, row, k)
            acc = tl.dot(block, weight.load([column, k]).T, acc)
        parts = column_parts(acc, PARTS)
        for part in tl.static_range(PARTS):
            first = column + part * W
            h = load_block(difference_part, batch, row, first).to(tl.float32)
            rows = load_block(mean, batch, row, first).to(tl.float32) + h * _tanh(parts[part])
            store_rows(rows, y, activated, scale_ptr, shift_ptr, batch, row, first, channels)


def _pairs_tile(x: Tensor) -> Tile:
    """Return a tile of pairs. Its two products take as many registers as one of all rows."""
    if hardware.has_large_memory(x):
        return Tile(64, 128, 64, 4, 4, 3, 2)
    return Tile(64, 128, 32, 2, 8, 3, 1)


def _pool_tile(x: Tensor) -> Tile:
    return HALF if hardware.has_large_memory(x) else SMALL


def paired_rows(x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None) -> Tensor:
    """Apply a pointwise convolution, and combine pairs of neighboring rows.

    Parameters
    ----------
    x : [B, S, K]
        Rows, contiguous, float16 or bfloat16; S is even, and K a multiple of 8.
    weight : [N, K]
        Weight, contiguous, of the dtype of ``x``; N is a multiple of 8.
    bias : [N]
        Bias.
    residual : [B, S, N] or None
        Rows to add, contiguous.

    Returns
    -------
    [2, B, S / 2, N]
        Means and half differences of pairs, of the dtype of ``x``.
    """
    return launch_paired_rows(x, weight, bias, residual, _pairs_tile(x))


def launch_paired_rows(
    x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None, tile: Tile
) -> Tensor:
    """Run `paired_rows` with the given block sizes."""
    (n_sequences, length, n_in), n_out = x.shape, len(weight)
    n_pairs = length // 2
    pairs = x.new_empty(2, n_sequences, n_pairs, n_out)
    if residual is not None:
        residual = residual.view(n_sequences, n_pairs, 2 * n_out)
    x = x.view(n_sequences, n_pairs, 2 * n_in)
    launch = Launch.of(tile, x, n_out)
    with torch.cuda.device_of(x):
        _paired_rows_kernel[(launch.programs,)](
            launch.given(x, launch.operand),
            launch.given(weight, launch.weight),
            *(launch.given(rows, launch.part) for rows in (residual, *pairs)),
            bias,
            n_sequences,
            n_pairs,
            n_out,
            n_in,
            DESCRIBED=launch.described,
            **launch.options,
            **early_launch(x),
        )
    return pairs


def attention_pool(
    pairs: Tensor, weight: Tensor, *, activation: Activation | None = None, with_rows: bool = True
) -> Activated:
    """Pool pairs of rows by attention, with separate weights for each channel.

    Parameters
    ----------
    pairs : [2, B, S, C]
        Means and half differences, as `paired_rows` returns them.
    weight : [C, C]
        Map from rows to logits, contiguous, of the dtype of the pairs.
    activation, with_rows
        As for `mlff_triton.kernels.genomics.convolution.convolution`.

    Returns
    -------
    Activated
        Pooled rows [B, S, C].
    """
    return launch_attention_pool(pairs, weight, activation, with_rows, _pool_tile(pairs))


def launch_attention_pool(
    pairs: Tensor, weight: Tensor, activation: Activation | None, with_rows: bool, tile: Tile
) -> Activated:
    """Run `attention_pool` with the given block sizes."""
    mean, difference = pairs
    y = torch.empty_like(mean) if with_rows else None
    activated = None if activation is None else torch.empty_like(mean)
    launch = Launch.of(tile, mean, len(weight))
    with torch.cuda.device_of(pairs):
        _attention_pool_kernel[(launch.programs,)](
            launch.given(mean, launch.part),
            launch.given(difference, launch.operand),
            launch.given(difference, launch.part),
            launch.given(weight, launch.weight),
            *(launch.given(rows, launch.part) for rows in (y, activated)),
            *(activation or (None, None)),
            *mean.shape,
            DESCRIBED=launch.described,
            **launch.options,
            **early_launch(pairs),
        )
    return Activated(y, activated)
