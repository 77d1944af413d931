"""The largest logit of each row and its index, without storing the logits.

    logit = max_v (norm(x) W^T + b)_v      index = the smallest v with that logit

The normalization is folded into W and b, as in `token_linear`. Each program loops over the whole
vocabulary for its rows, and keeps the largest logit of every column of its block.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common.dense import accumulator
from mlff_triton.kernels.common.early_launch import allow_next, early_launch, wait_for_previous
from mlff_triton.kernels.numerics.product import exact_precision
from mlff_triton.kernels.transformer.token_linear import (
    Moments,
    TokenLinear,
    load_moments,
    moment_arguments,
    normalize_product,
    statistics,
    token_product,
)
from mlff_triton.kernels.transformer.types import TopLogit


@triton.jit
def _update_top(top, index, logits, columns):
    """Replace the largest logits so far [M, N] and their indices where ``logits`` exceed them.

    No number is larger than NaN, and the first of equal logits stays.
    """
    larger = (logits > top) | ((logits != logits) & (top == top))
    top = tl.where(larger, logits, top)
    return top, tl.where(larger, columns[None, :], index)


@triton.jit
def _store_top(top, index, index_ptr, logit_ptr, rows, row_mask, n_out):
    """Reduce the largest logits [M, N] and their indices over the columns, and store them."""
    unordered = top != top
    has_nan = tl.max(unordered.to(tl.int32), 1) > 0
    logit = tl.max(tl.where(unordered, float("-inf"), top), 1)
    found = tl.where(has_nan[:, None], unordered, top == logit[:, None])
    index = tl.min(tl.where(found, index, n_out), 1)
    tl.store(index_ptr + rows, index.to(tl.int64), row_mask)
    tl.store(logit_ptr + rows, tl.where(has_nan, float("nan"), logit), row_mask)


@triton.jit(do_not_specialize=["n_rows"])
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
    """Write the index and the value [n_rows] of each row's largest logit.

    Reads rows x [n_rows, n_in], weight [n_out, n_in], bias and row sums [n_out], and moments
    [2, n_parts, n_rows]. Rows from ``live`` [1] on are not written. Grid: (row blocks of M,).
    """
    allow_next(EARLY_LAUNCH)
    wait_for_previous(EARLY_LAUNCH)
    capacity = n_rows
    if live_ptr is not None:
        n_rows = tl.minimum(n_rows, tl.load(live_ptr))
    first = tl.program_id(0) * M
    if first >= n_rows:
        return
    rows = first.to(tl.int64) + tl.arange(0, M)
    row_mask = rows < n_rows
    if moments_ptr is not None:
        sums, squares = load_moments(moments_ptr, rows, row_mask, capacity, n_parts, PARTS)
        mean, rstd = statistics(sums, squares, n_in, eps)

    top = tl.full((M, N), float("-inf"), ACCUMULATE)
    index = tl.zeros((M, N), tl.int32) + tl.arange(0, N)[None, :]
    for column in range(0, n_out, N):
        columns = column + tl.arange(0, N)
        column_mask = columns < n_out
        acc = token_product(
            x_ptr,
            weight_ptr,
            rows,
            row_mask,
            columns,
            column_mask,
            n_in,
            PRECISION,
            ACCUMULATE,
            M,
            N,
            K,
        )
        if moments_ptr is not None:
            row_sum = tl.load(row_sum_ptr + columns, column_mask, other=0.0)
            acc = normalize_product(acc, mean, rstd, row_sum)
        acc += tl.load(bias_ptr + columns, column_mask, other=0.0).to(ACCUMULATE)[None, :]
        acc = tl.where(column_mask[None, :], acc, float("-inf"))
        top, index = _update_top(top, index, acc, columns)

    _store_top(top, index, index_ptr, logit_ptr, rows, row_mask, n_out)


class Tile(NamedTuple):
    """Block sizes of a launch: rows, columns of the vocabulary, and inner channels."""

    rows: int
    columns: int
    inner: int


def _tile(n_rows: int, n_out: int, size: int) -> Tile:
    """Return the largest tile that still gives enough programs: each one reads all weights."""
    rows = 16 if n_rows <= 2048 else 32 if n_rows <= 8192 or size > 2 else 64
    return Tile(rows, min(64, max(16, triton.next_power_of_2(n_out))), 128 // size)


def top_logit(
    x: Tensor, layer: TokenLinear, live: Tensor | None = None, *, moments: Moments | None = None
) -> TopLogit:
    """Return the largest output of a linear layer for each row, and its index.

    Parameters
    ----------
    x : [T, K]
        Rows, contiguous.
    layer : TokenLinear
        Weight and bias, of the dtype of ``x``.
    live : int32 [1], optional
        Number of leading rows to compute, read on the device; all by default. The other rows of
        the result are uninitialized.
    moments : Moments, optional
        Moments of the rows; required if the layer contains a normalization.

    Returns
    -------
    TopLogit
        ``index`` int64 [T] and ``logit`` [T], float64 for float64 and float32 otherwise: logits are
        not rounded to the dtype of ``x``. Of several equal logits, the one with the smallest index
        counts. If a row has a NaN, its index is that of the first NaN, and its logit is NaN. No
        gradients flow.

    Raises
    ------
    InputError
        If moments are missing for a layer with a normalization, or given for one without.
    """
    tile = _tile(len(x), len(layer.weight), x.element_size())
    return launch_top_logit(x, layer, live, moments, tile)


def launch_top_logit(
    x: Tensor, layer: TokenLinear, live: Tensor | None, moments: Moments | None, tile: Tile
) -> TopLogit:
    """Run `top_logit` with the given block sizes."""
    sums, eps, n_parts = moment_arguments(moments, layer)
    n_rows, n_in = x.shape
    n_out = len(layer.weight)
    index = torch.empty(n_rows, dtype=torch.int64, device=x.device)
    logit = torch.empty(n_rows, dtype=torch.promote_types(x.dtype, torch.float32), device=x.device)
    if not n_rows:
        return TopLogit(index, logit)
    with torch.cuda.device_of(x):
        _top_logit_fwd_kernel[(triton.cdiv(n_rows, tile.rows),)](
            x,
            layer.weight,
            layer.bias,
            layer.row_sum,
            sums,
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
