"""Tracks of AlphaGenome: one product for all heads of a resolution.

    p = softplus(x W^T + b) s
    y = f(p) m      f(p) = p up to 10, (p + 10)^2 / 40 above; to the power 4/3 for RNA

W, b, s and m depend on the organism. Each tile of 128 columns belongs to one head, and a table
gives the position of its results, so each row is read from memory once for all heads.

Source: Ž. Avsec et al., "Advancing regulatory variant effect prediction with AlphaGenome",
https://doi.org/10.1038/s41586-025-10014-0.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common import hardware
from mlff_triton.kernels.common.activations import gelu_sigmoid, sigmoid, softplus_relative
from mlff_triton.kernels.common.tiles import tile_in_group
from mlff_triton.kernels.genomics import types
from mlff_triton.kernels.genomics.sequence_tiles import (
    HALF,
    Launch,
    Tile,
    column_parts,
    load_block,
)
from mlff_triton.kernels.genomics.types import COLUMNS, TrackPlan, TrackWeights

SQUASHED, PROBABILITIES = tl.constexpr(types.SQUASHED), tl.constexpr(types.PROBABILITIES)
_CLIP = tl.constexpr(10.0)
_POWER = tl.constexpr(4 / 3)

_SMALL = Tile(64, COLUMNS, 32, 4, 4, 2, 1)


@triton.jit
def _product(
    x, weight, batch, row, weight_row, n_in, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr
):
    """Multiply M rows of one sequence by N rows of the weight."""
    acc = tl.zeros((M, N), tl.float32)
    for k in range(0, n_in, K):
        acc = tl.dot(load_block(x, batch, row, k), weight.load([weight_row, k]).T, acc)
    return acc


@triton.jit
def _tracks_kernel(
    x,
    weight,
    bias_ptr,
    scale_ptr,
    mean_ptr,
    organism_ptr,
    table_ptr,
    out_ptr,
    n_sequences,
    length,
    n_in,
    n_weights,
    n_tiles,
    PROGRAMS: tl.constexpr,
    SITES: tl.constexpr,
    SCALED: tl.constexpr,
    PARTS: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
):
    """Write tracks to the positions in ``out`` that the table [n_tiles, 6] gives.

    x [n_sequences, length, n_in] and weight [organisms n_weights, n_in] are tensor descriptors;
    bias, scale and mean are [organisms, n_weights]. With SITES, the results are logits and
    probabilities. Grid: (PROGRAMS,).
    """
    tiles_row = tl.cdiv(length, M)
    total = n_sequences * tiles_row * n_tiles
    for tile in tl.range(tl.program_id(0), total, PROGRAMS, flatten=True):
        tile = tl.cast(tile, tl.int32)  # noqa: PLW2901 - a Python integer under the interpreter
        tile_m, entry = tile_in_group(tile, n_sequences * tiles_row, n_tiles)
        batch, row = tile_m // tiles_row, tile_m % tiles_row * M
        organism = tl.load(organism_ptr + batch).to(tl.int32)
        first_weight = tl.load(table_ptr + entry * 6).to(tl.int32)
        begin, second = tl.load(table_ptr + entry * 6 + 1), tl.load(table_ptr + entry * 6 + 2)
        width = tl.load(table_ptr + entry * 6 + 3).to(tl.int32)
        first = tl.load(table_ptr + entry * 6 + 4).to(tl.int32)
        kind = tl.load(table_ptr + entry * 6 + 5).to(tl.int32)
        weight_row = organism * n_weights + first_weight
        acc = _product(x, weight, batch, row, weight_row, n_in, M, N, K)
        parts = column_parts(acc, PARTS)
        m = tl.arange(0, M)[:, None]
        corner = out_ptr + (batch.to(tl.int64) * length + row) * width
        for part in tl.static_range(PARTS):
            columns = part * (N // PARTS) + tl.arange(0, N // PARTS)
            track = (first + columns)[None, :]
            values = parts[part] + tl.load(bias_ptr + weight_row + columns)[None, :]
            offsets = m * width + track  # within a block of rows, so 32 bits are enough
            mask = (row + m < length) & (track < width)
            if SITES:
                y = values
                p = sigmoid(values).to(out_ptr.dtype.element_ty)
                tl.store(corner + second + offsets, p, mask & (kind == PROBABILITIES))
            else:
                y = softplus_relative(values) * tl.load(scale_ptr + weight_row + columns)[None, :]
                if not SCALED:
                    y = tl.where(y > _CLIP, (y + _CLIP) * (y + _CLIP) * (0.25 / _CLIP), y)
                    if kind == SQUASHED:
                        y = tl.exp2(_POWER * tl.log2(y))
                    y *= tl.load(mean_ptr + weight_row + columns)[None, :]
            tl.store(corner + begin + offsets, y.to(out_ptr.dtype.element_ty), mask)


@triton.jit
def _binned_linear_kernel(
    x,
    weight,
    bias_ptr,
    y_ptr,
    n_sequences,
    length,
    n_out,
    n_in,
    width,
    PROGRAMS: tl.constexpr,
    PARTS: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
):
    """Write gelu(x W^T + bias of the bin), y [n_sequences, length, n_out].

    x and weight are tensor descriptors. The bias is [n_sequences, length / width, n_out], with
    ``width`` a multiple of M or the length. Grid: (PROGRAMS,).
    """
    tiles_row = tl.cdiv(length, M)
    tiles_column = tl.cdiv(n_out, N)
    total = n_sequences * tiles_row * tiles_column
    for tile in tl.range(tl.program_id(0), total, PROGRAMS, flatten=True):
        tile = tl.cast(tile, tl.int32)  # noqa: PLW2901 - a Python integer under the interpreter
        tile_m, tile_n = tile_in_group(tile, n_sequences * tiles_row, tiles_column)
        batch, row = tile_m // tiles_row, tile_m % tiles_row * M
        acc = _product(x, weight, batch, row, tile_n * N, n_in, M, N, K)
        parts = column_parts(acc, PARTS)
        m = tl.arange(0, M)[:, None]
        corner = y_ptr + (batch.to(tl.int64) * length + row) * n_out
        bias_row = (batch * (length // width) + row // width).to(tl.int64)
        for part in tl.static_range(PARTS):
            columns = tile_n * N + part * (N // PARTS) + tl.arange(0, N // PARTS)
            bias = tl.load(bias_ptr + bias_row * n_out + columns, columns < n_out, other=0.0)
            values = gelu_sigmoid(parts[part] + bias.to(tl.float32)[None, :])
            mask = (row + m < length) & (columns < n_out)[None, :]
            tl.store(corner + m * n_out + columns[None, :], values.to(y_ptr.dtype.element_ty), mask)


def _tile(x: Tensor) -> Tile:
    return HALF if hardware.has_large_memory(x) else _SMALL


def binned_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Apply a linear map with a bias for each bin of positions, then GELU, without gradients.

    Parameters
    ----------
    x : [B, S, K]
        Positions, float16 or bfloat16, contiguous; K is a multiple of 8.
    weight : [N, K]
        Weight.
    bias : [B, G, N]
        Biases of G bins, contiguous; G is 1, or S / G a multiple of 128.

    Returns
    -------
    [B, S, N]
        Activated positions, of the dtype of ``x``; gelu(u) is u sigmoid(1.702 u).
    """
    n_sequences, length, n_in = x.shape
    n_out = len(weight)
    y = x.new_empty(n_sequences, length, n_out)
    launch = Launch.of(_tile(x), x, n_out)
    with torch.cuda.device_of(x):
        _binned_linear_kernel[(launch.programs,)](
            launch.operand(x),
            launch.weight(weight),
            bias,
            y,
            n_sequences,
            length,
            n_out,
            n_in,
            length // bias.shape[1],
            **launch.options,
        )
    return y


def tracks(
    x: Tensor,
    weights: TrackWeights,
    plan: TrackPlan,
    organism: Tensor,
    dtype: torch.dtype,
    *,
    scaled: bool = False,
) -> list[tuple[Tensor, ...]]:
    """Compute the tracks of several heads, without gradients.

    Parameters
    ----------
    x : [B, S, K]
        Embeddings, float16 or bfloat16, contiguous; K is a multiple of 8.
    weights : TrackWeights
        Weights of all heads.
    plan : TrackPlan
        Heads to compute, for B S rows; all of them are heads of tracks, or all are heads of logits.
    organism : int64 [B]
        Organisms, read on the device.
    dtype : torch.dtype
        Dtype of the results.
    scaled : bool
        If True, return softplus(x W^T + b) s.

    Returns
    -------
    list of tuple of [B, S, n_tracks]
        Results of each head, as views of one buffer: tracks, logits, or logits and probabilities.
    """
    n_sequences, length, n_in = x.shape
    memory = x.new_empty(plan.size, dtype=dtype)
    n_tiles = len(plan.table)
    launch = Launch.of(_tile(x), x, n_tiles * COLUMNS)
    with torch.cuda.device_of(x):
        _tracks_kernel[(launch.programs,)](
            launch.operand(x),
            launch.weight(weights.weight.flatten(0, 1)),
            *weights[1:],
            organism,
            plan.table,
            memory,
            n_sequences,
            length,
            n_in,
            weights.weight.shape[1],
            n_tiles,
            SITES=plan.heads[0].kind >= types.LOGITS,
            SCALED=scaled,
            **launch.options,
        )
    return plan.results(memory, (n_sequences, length))
