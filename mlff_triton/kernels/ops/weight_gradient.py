"""Gradients of the weight and the bias of a linear layer with many rows, on tensor cores.

    gW = t^T x      gb = sum_rows t

with the gradients t of the products ``z = x W^T + b``. Each program computes one tile of the
weight over a part of the rows, and a second pass adds the parts in a fixed order. Both matrices are
split into halves, with a unit per column and block of rows.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common.scaled_halves import multiply_halves, split_along

_TILE_ROWS, _TILE_COLUMNS, _INNER, _WARPS, _STAGES = 128, 64, 32, 4, 2
_PROGRAMS = 528  # to fill a large GPU


@triton.jit
def _weight_gradient_kernel(
    t_ptr,
    x_ptr,
    parts_ptr,
    bias_parts_ptr,
    n_rows,
    n_out,
    n_in,
    split_size,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
):
    """Write parts [splits, n_out, n_in] and bias_parts [splits, n_out].

    Reads t [n_rows, n_out] and x [n_rows, n_in]. Grid: (tiles of the weight, splits).
    """
    tiles_n = tl.cdiv(n_in, N)
    tile, split = tl.program_id(0), tl.program_id(1).to(tl.int64)
    first_column = tile % tiles_n == 0
    m = tile // tiles_n * M + tl.arange(0, M)[None, :]
    n = tile % tiles_n * N + tl.arange(0, N)[None, :]

    acc = tl.zeros((M, N), tl.float32)
    bias = tl.zeros((1, M), tl.float32)
    last = tl.minimum(n_rows, (tl.program_id(1) + 1) * split_size)
    for start in range(tl.program_id(1) * split_size, last, K):
        row = (start + tl.arange(0, K)).to(tl.int64)[:, None]
        t = tl.load(t_ptr + row * n_out + m, (row < last) & (m < n_out), other=0.0)  # [K, M]
        x = tl.load(x_ptr + row * n_in + n, (row < last) & (n < n_in), other=0.0)  # [K, N]
        if first_column:
            bias += tl.sum(t, 0, keep_dims=True)
        t_high, t_low, t_unit = split_along(t, 0)
        x_high, x_low, x_unit = split_along(x, 0)
        acc += multiply_halves(t_high.T, t_low.T, x_high, x_low) * (t_unit.T * x_unit)

    m_out = tile // tiles_n * M + tl.arange(0, M)[:, None]
    parts_ptr += split * n_out * n_in
    tl.store(parts_ptr + m_out * n_in + n, acc, (m_out < n_out) & (n < n_in))
    if first_column:
        tl.store(bias_parts_ptr + split * n_out + m, bias, m < n_out)


def launch_weight_gradient(t: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of the weight [N, K] and the bias [N].

    Parameters
    ----------
    t, x : [M, N], [M, K]
        Gradients of the products, and inputs; float32.
    """
    t, x = t.contiguous(), x.contiguous()
    (n_rows, n_out), n_in = t.shape, x.shape[1]
    if not (t.numel() and x.numel()):
        return t.new_zeros(n_out, n_in), t.sum(0)
    rows = min(_TILE_ROWS, max(16, triton.next_power_of_2(n_out)))
    columns = min(_TILE_COLUMNS, max(16, triton.next_power_of_2(n_in)))
    tiles = triton.cdiv(n_out, rows) * triton.cdiv(n_in, columns)
    n_splits = max(1, min(_PROGRAMS // tiles, triton.cdiv(n_rows, 8 * _INNER)))
    parts = t.new_empty(n_splits, n_out, n_in)
    bias_parts = t.new_empty(n_splits, n_out)
    with torch.cuda.device_of(t):
        _weight_gradient_kernel[(tiles, n_splits)](
            t,
            x,
            parts,
            bias_parts,
            n_rows,
            n_out,
            n_in,
            triton.cdiv(n_rows, n_splits * _INNER) * _INNER,
            M=rows,
            N=columns,
            K=_INNER,
            num_warps=_WARPS,
            num_stages=_STAGES,
        )
    return parts.sum(0), bias_parts.sum(0)
