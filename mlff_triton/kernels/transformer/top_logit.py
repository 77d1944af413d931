"""The largest logit of every row and where it is; no logits are written.

    logit = max_v (norm(x) W^T + b)_v      index = the smallest v that has it

The normalization is a part of W and b, as `token_linear` has it. A program goes through the whole
vocabulary for its rows, and keeps for each column of a tile the largest number that it has seen.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common.dense import accumulator
from mlff_triton.kernels.common.early_launch import early_launch, wait_for_previous
from mlff_triton.kernels.common.hardware import exact_precision
from mlff_triton.kernels.transformer.token_linear import (
    Moments,
    TokenLinear,
    load_sums,
    product,
    statistics,
    unpacked,
)
from mlff_triton.kernels.types.top_logit import TopLogit


@triton.jit
def _top_logit_fwd_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    row_sum_ptr,
    moments_ptr,
    index_ptr,
    logit_ptr,
    live_ptr,
    n_rows,
    n_out,
    n_in,
    n_parts,
    eps: tl.float64,
    PRECISION: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
    PARTS: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
):
    wait_for_previous(EARLY_LAUNCH)
    capacity = n_rows
    if live_ptr is not None:
        n_rows = tl.minimum(n_rows, tl.load(live_ptr))
    first = tl.program_id(0) * M
    if first >= n_rows:
        return
    rows = first.to(tl.int64) + tl.arange(0, M)
    inside = rows < n_rows
    if moments_ptr is not None:
        sums, squares = load_sums(moments_ptr, rows, inside, capacity, n_parts, PARTS)
        mean, rstd = statistics(sums, squares, n_in, eps)

    top = tl.full((M, N), float("-inf"), ACCUMULATE)
    place = tl.zeros((M, N), tl.int32) + tl.arange(0, N)[None, :]
    for column in range(0, n_out, N):
        columns = column + tl.arange(0, N)
        known = columns < n_out
        acc = product(
            x_ptr, weight_ptr, rows, inside, columns, known, n_in, PRECISION, ACCUMULATE, M, N, K
        )
        if moments_ptr is not None:
            row_sum = tl.load(row_sum_ptr + columns, known, other=0.0)
            acc = rstd[:, None] * (acc - mean[:, None] * row_sum[None, :])
        acc += tl.load(bias_ptr + columns, known, other=0.0).to(ACCUMULATE)[None, :]
        acc = tl.where(known[None, :], acc, float("-inf"))
        # No number is larger than NaN, and what came first stays.
        larger = (acc > top) | ((acc != acc) & (top == top))
        top = tl.where(larger, acc, top)
        place = tl.where(larger, columns[None, :], place)

    unordered = top != top
    lost = tl.max(unordered.to(tl.int32), 1) > 0
    logit = tl.max(tl.where(unordered, float("-inf"), top), 1)
    found = tl.where(lost[:, None], unordered, top == logit[:, None])
    index = tl.min(tl.where(found, place, n_out), 1)
    tl.store(index_ptr + rows, index.to(tl.int64), inside)
    tl.store(logit_ptr + rows, tl.where(lost, float("nan"), logit), inside)


class _Tile(NamedTuple):
    rows: int
    columns: int
    inner: int


def _tile(n_rows: int, n_out: int, size: int) -> _Tile:
    """Programs for a whole chip come first, then large tiles: each program reads all weights."""
    rows = 16 if n_rows <= 2048 else 32 if n_rows <= 8192 or size > 2 else 64
    return _Tile(rows, min(64, max(16, triton.next_power_of_2(n_out))), 128 // size)


def top_logit(
    x: Tensor, layer: TokenLinear, live: Tensor | None = None, *, moments: Moments | None = None
) -> TopLogit:
    """The largest of what a linear layer makes of each row, and which one it is.

    Parameters
    ----------
    x : [T, K]
        Rows, contiguous.
    layer : TokenLinear
        Weight and bias, of the dtype of ``x``.
    live : int32 [1], optional
        How many rows mean something; of the others nothing is computed.
    moments : Moments, optional
        Of the rows, if the layer has a normalization in it.

    Returns
    -------
    TopLogit
        ``index`` int64 [T] and ``logit`` [T], float64 for float64 and float32 otherwise: they are
        not rounded to the dtype of ``x``. The smallest index of several that are equally large;
        that of the first NaN, with NaN, if there is one. No gradients flow.
    """
    assert (moments is None) == (layer.row_sum is None)
    n_rows, n_in = x.shape
    n_out = len(layer.weight)
    index = torch.empty(n_rows, dtype=torch.int64, device=x.device)
    logit = torch.empty(n_rows, dtype=torch.promote_types(x.dtype, torch.float32), device=x.device)
    if not n_rows:
        return TopLogit(index, logit)
    given, eps, n_parts = unpacked(moments)
    tile = _tile(n_rows, n_out, x.element_size())
    with torch.cuda.device_of(x):
        _top_logit_fwd_kernel[(triton.cdiv(n_rows, tile.rows),)](
            x,
            layer.weight,
            layer.bias,
            layer.row_sum,
            given,
            index,
            logit,
            live,
            n_rows,
            n_out,
            n_in,
            n_parts,
            eps,
            PRECISION=exact_precision(x),
            ACCUMULATE=accumulator(x),
            PARTS=triton.next_power_of_2(n_parts),
            M=tile.rows,
            N=tile.columns,
            K=tile.inner,
            num_warps=4,
            num_stages=3,
            **early_launch(x),
        )
    return TopLogit(index, logit)
