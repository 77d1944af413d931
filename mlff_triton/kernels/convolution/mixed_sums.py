"""Gradients of sums that weights mix to the output of a fully connected convolution.

    y_i[w, m]           = sum_r,k W[k, r, w] S_i[(r, m), k]       W[H, r, w] is the bias
    grad S_i[(r, m), k] = sum_w W[k, r, w] grad y_i[w, m]
    grad W[k, r, w]     = sum_i,m S_i[(r, m), k] grad y_i[w, m]

with the sums S of `mlff_triton.kernels.convolution.outer_sums`, for some receivers. Gradients of
weights are summed by several programs, which take tiles of receivers in turns. A second pass adds
their sums, in order. Outputs that are means are divided by the numbers of edges here.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.convolution.coupled_columns import FIELDS, CoupledColumns
from mlff_triton.kernels.convolution.gradient_blocks import splits_of
from mlff_triton.kernels.convolution.graphs import mean_of
from mlff_triton.kernels.convolution.outer_sums import HIDDEN, add_dot, precision_of_sums

_FIELDS = tl.constexpr(FIELDS)
_NODES = 64  # at a time
_CHANNELS = 16  # of the output, at a time


@triton.jit
def _load_column(columns_ptr, column):
    """Return the first weight of a column, its column of the output, stride and channels."""
    columns_ptr += column * _FIELDS
    return (
        tl.load(columns_ptr + 4),
        tl.load(columns_ptr + 5),
        tl.load(columns_ptr + 3),
        tl.load(columns_ptr + 6),
    )


@triton.jit
def _count_edges(row_ptr_ptr, node, n_nodes):
    """Return the numbers of edges of receivers."""
    inside = node < n_nodes
    first = tl.load(row_ptr_ptr + node, inside, other=0)
    return tl.load(row_ptr_ptr + node + 1, inside, other=0) - first


@triton.jit
def _load_gradients(
    grad_ptr, node, edges, column, inside, n_out, MEAN: tl.constexpr, ACC: tl.constexpr
):
    """Return gradients of sums [M, CHANNELS], from those of sums or means."""
    mask = (edges > 0)[:, None] & inside[None, :]
    grad = tl.load(grad_ptr + node[:, None] * n_out + column[None, :], mask, other=0.0).to(ACC)
    if MEAN:
        grad = mean_of(grad, edges[:, None])
    return grad


@triton.jit
def _sums_gradient_kernel(
    grad_ptr,
    weight_ptr,
    bias_ptr,
    row_ptr_ptr,
    columns_ptr,
    out_ptr,
    n_nodes,
    n_out,
    n_coupled,
    n_hidden,
    n_weights,
    n_inner,
    M: tl.constexpr,
    CHANNELS: tl.constexpr,
    HIDDEN: tl.constexpr,
    MEAN: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Write gradients of sums [n_nodes, n_coupled, n_inner].

    Grid: tiles of M receivers, with all columns each. Tiles without edges are left out.
    """
    tile, index = tl.program_id(0) // n_coupled, tl.program_id(0) % n_coupled
    node = tile.to(tl.int64) * M + tl.arange(0, M)
    edges = _count_edges(row_ptr_ptr, node, n_nodes)
    if tl.max(edges, 0) > 0:
        weight, column, stride, count = _load_column(columns_ptr, index)
        dtype: tl.constexpr = out_ptr.dtype.element_ty
        for begin in range(0, n_inner, HIDDEN):
            k = begin + tl.arange(0, HIDDEN)
            total = tl.zeros((M, HIDDEN), dtype)
            for start in range(0, count, CHANNELS):
                w = start + tl.arange(0, CHANNELS)
                inside = w < count
                grad = _load_gradients(
                    grad_ptr, node, edges, column + w * stride, inside, n_out, MEAN, dtype
                )
                weights = tl.load(
                    weight_ptr + k.to(tl.int64)[None, :] * n_weights + (weight + w)[:, None],
                    (k < n_hidden)[None, :] & inside[:, None],
                    other=0.0,
                ).to(dtype)  # [CHANNELS, HIDDEN]
                bias = tl.load(bias_ptr + weight + w, inside, other=0.0).to(dtype)
                weights = tl.where((k == n_hidden)[None, :], bias[:, None], weights)
                total = add_dot(total, grad, weights, PRECISION)
            row = node * n_coupled + index
            mask = (node < n_nodes)[:, None]
            tl.store(out_ptr + row[:, None] * n_inner + k[None, :], total, mask)


@triton.jit
def _weight_gradient_kernel(
    grad_ptr,
    sums_ptr,
    row_ptr_ptr,
    columns_ptr,
    rows_ptr,
    out_ptr,
    bias_ptr,
    n_nodes,
    n_out,
    n_coupled,
    n_hidden,
    n_weights,
    n_inner,
    n_parts,
    M: tl.constexpr,
    CHANNELS: tl.constexpr,
    HIDDEN: tl.constexpr,
    MEAN: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Write parts of gradients, [splits, n_hidden, n_weights], and of the bias [splits, n_weights].

    Grid: (rows with all blocks of CHANNELS each, blocks of HIDDEN, splits of the receivers).
    """
    index = tl.load(rows_ptr + tl.program_id(0) // n_parts)
    weight, column, stride, count = _load_column(columns_ptr, index)
    w = (tl.program_id(0) % n_parts) * CHANNELS + tl.arange(0, CHANNELS)
    inside = w < count
    if tl.min(w, 0) < count:
        k = tl.program_id(1) * HIDDEN + tl.arange(0, HIDDEN)
        dtype: tl.constexpr = out_ptr.dtype.element_ty
        total = tl.zeros((HIDDEN, CHANNELS), dtype)
        for start in range(tl.program_id(2) * M, n_nodes, tl.num_programs(2) * M):
            node = (start + tl.arange(0, M)).to(tl.int64)
            edges = _count_edges(row_ptr_ptr, node, n_nodes)
            for m in range(stride):
                grad = _load_gradients(
                    grad_ptr, node, edges, column + m + w * stride, inside, n_out, MEAN, dtype
                )
                row = node * n_coupled + index + m
                sums = tl.load(
                    sums_ptr + row[None, :] * n_inner + k[:, None], (edges > 0)[None, :], other=0.0
                )  # [HIDDEN, M]
                total = add_dot(total, sums, grad, PRECISION)
        split = tl.program_id(2).to(tl.int64)
        out = out_ptr + (split * n_hidden + k)[:, None] * n_weights + (weight + w)[None, :]
        tl.store(out, total, (k < n_hidden)[:, None] & inside[None, :])
        bias = bias_ptr + split * n_weights + (weight + w)[None, :] + tl.zeros_like(k)[:, None]
        tl.store(bias, total, (k == n_hidden)[:, None] & inside[None, :])


def _options(sums: Tensor, reduce: str) -> dict[str, object]:
    return {
        "M": _NODES,
        "CHANNELS": _CHANNELS,
        "HIDDEN": HIDDEN,
        "MEAN": reduce == "mean",
        "PRECISION": precision_of_sums(sums.dtype),
        "num_warps": 4,
        "num_stages": 2,
    }


def write_sums_gradient(
    grad: Tensor,
    weight: Tensor,
    bias: Tensor,
    row_ptr: Tensor,
    columns: CoupledColumns,
    reduce: str,
    out: Tensor,
) -> None:
    """Write the gradients of sums [n, C, padded hidden], from those of the output [n, columns]."""
    n_nodes, n_coupled, n_inner = out.shape
    with torch.cuda.device_of(out):
        _sums_gradient_kernel[(triton.cdiv(n_nodes, _NODES) * n_coupled,)](
            grad,
            weight,
            bias,
            row_ptr,
            columns.columns,
            out,
            n_nodes,
            grad.shape[1],
            n_coupled,
            *weight.shape,
            n_inner,
            **_options(out, reduce),
        )


def weight_gradients(
    grad: Tensor,
    sums: Tensor,
    weight: Tensor,
    row_ptr: Tensor,
    columns: CoupledColumns,
    reduce: str,
) -> tuple[Tensor, Tensor]:
    """Return parts of the gradients of weight [splits, H, weights] and bias [splits, weights]."""
    n_nodes, n_coupled, n_inner = sums.shape
    n_hidden, n_weights = weight.shape
    parts = triton.cdiv(columns.channels, _CHANNELS)
    rows, tiles = len(columns.rows) * parts, n_inner // HIDDEN
    splits = splits_of(triton.cdiv(n_nodes, _NODES), rows * tiles, grad)
    out = sums.new_empty(splits, n_hidden, n_weights)
    bias = sums.new_empty(splits, n_weights)
    with torch.cuda.device_of(out):
        _weight_gradient_kernel[(rows, tiles, splits)](
            grad,
            sums,
            row_ptr,
            columns.columns,
            columns.rows,
            out,
            bias,
            n_nodes,
            grad.shape[1],
            n_coupled,
            n_hidden,
            n_weights,
            n_inner,
            parts,
            **_options(sums, reduce),
        )
    return out, bias
