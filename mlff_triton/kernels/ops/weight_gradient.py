"""Gradients of the weights and the bias of linear maps with many rows, on tensor cores.

    gW = t^T x      gb = sum_rows t

with the gradients t of the products ``z = x W^T + b``. Rows have one weight, or each part of packed
3x3 tensors has its own: part l consists of the components l^2 to (l + 1)^2 - 1. Each program
computes one tile of a weight over some of its rows, and a second pass adds these parts in a fixed
order. Both matrices are split into halves, with a unit per column and block of rows.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.numerics.product import product, split_along

_TILE_ROWS, _TILE_COLUMNS, _INNER, _WARPS, _STAGES = 128, 64, 32, 4, 2
_PROGRAMS = 528  # to fill a large GPU


@triton.jit
def _weight_gradient_kernel(
    t_ptr,
    x_ptr,
    rows_ptr,
    sums_ptr,
    bias_sums_ptr,
    n_rows,
    n_out,
    n_in,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
):
    """Write sums [splits, weights, n_out, n_in], and bias_sums [splits, weights, n_out] if wanted.

    Reads t [components, n_rows, n_out] and x [components, n_rows, n_in], or only their first
    ``rows`` rows. Grid: (tiles of a weight, splits, weights).
    """
    tiles_n = tl.cdiv(n_in, N)
    tile, split, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    m = tile // tiles_n * M + tl.arange(0, M)[None, :]
    n = tile % tiles_n * N + tl.arange(0, N)[None, :]
    rows = (2 * part + 1) * n_rows
    if rows_ptr is not None:
        rows = tl.minimum(tl.load(rows_ptr).to(tl.int32), rows)
    size = tl.cdiv(tl.cdiv(rows, tl.num_programs(1)), K) * K
    first = part * part * n_rows
    last = first + tl.minimum(rows, (split + 1) * size)

    acc = tl.zeros((M, N), tl.float32)
    bias = tl.zeros((1, M), tl.float32)
    for start in range(first + split * size, last, K):
        row = (start + tl.arange(0, K)).to(tl.int64)[:, None]
        t = tl.load(t_ptr + row * n_out + m, (row < last) & (m < n_out), other=0.0)  # [K, M]
        x = tl.load(x_ptr + row * n_in + n, (row < last) & (n < n_in), other=0.0)  # [K, N]
        if bias_sums_ptr is not None:
            bias += tl.sum(t, 0, keep_dims=True)
        t_high, t_low, t_unit = split_along(t, 0)
        x_high, x_low, x_unit = split_along(x, 0)
        sums = product((t_high.T, t_low.T), (x_high, x_low), "halves")
        acc += sums * (t_unit.T * x_unit)

    weight = split.to(tl.int64) * tl.num_programs(2) + part
    m_out = tile // tiles_n * M + tl.arange(0, M)[:, None]
    sums_ptr += weight * n_out * n_in + m_out.to(tl.int64) * n_in + n
    tl.store(sums_ptr, acc, (m_out < n_out) & (n < n_in))
    if bias_sums_ptr is not None:
        tl.store(bias_sums_ptr + weight * n_out + m, bias, (m < n_out) & (tile % tiles_n == 0))


def launch_weight_gradient(
    t: Tensor, x: Tensor, rows: Tensor | None = None, *, with_bias: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the gradients of weights [W, N, K] and biases [W, N], empty if they are not wanted.

    Parameters
    ----------
    t, x : [1, M, N], [1, M, K] or [9, M, N], [9, M, K]
        Gradients of the products, and inputs; float32. There is one weight, or one for each of the
        three parts.
    rows : int64 or int32 [], optional
        Number of rows that matter, if there is one component.
    with_bias : bool
        If False, there is no bias.
    """
    t, x = t.contiguous(), x.contiguous()
    (n_components, n_rows, n_out), n_in = t.shape, x.shape[2]
    n_weights = math.isqrt(n_components)
    if not (t.numel() and x.numel()):
        return t.new_zeros(n_weights, n_out, n_in), t.new_zeros(n_weights, n_out)
    tile_rows = min(_TILE_ROWS, max(16, triton.next_power_of_2(n_out)))
    tile_columns = min(_TILE_COLUMNS, max(16, triton.next_power_of_2(n_in)))
    tiles = triton.cdiv(n_out, tile_rows) * triton.cdiv(n_in, tile_columns)
    n_splits = min(_PROGRAMS // (tiles * n_weights), triton.cdiv(n_rows, 8 * _INNER))
    sums = t.new_empty(max(1, n_splits), n_weights, n_out, n_in)
    bias_sums = t.new_empty(len(sums), n_weights, n_out) if with_bias else None
    with torch.cuda.device_of(t):
        _weight_gradient_kernel[(tiles, len(sums), n_weights)](
            t,
            x,
            rows,
            sums,
            bias_sums,
            n_rows,
            n_out,
            n_in,
            M=tile_rows,
            N=tile_columns,
            K=_INNER,
            num_warps=_WARPS,
            num_stages=_STAGES,
        )
    return sums.sum(0), t.new_empty(0) if bias_sums is None else bias_sums.sum(0)
