"""Gradients of sums that weights mix into the output of a fully connected convolution.

    y_i[w, m]           = sum_r,k W[k, r, w] S_i[(r, m), k]       W[H, r, w] is the bias
    grad S_i[(r, m), k] = sum_w W[k, r, w] grad y_i[w, m]
    grad W[k, r, w]     = sum_i,m S_i[(r, m), k] grad y_i[w, m]

with the sums S of `mlff_triton.kernels.convolution.outer_sums`, for some receivers. Gradients of
weights are summed by several programs, which take tiles of receivers in turn. A second pass adds
their sums, in order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.convolution.coupled_columns import FIELDS, CoupledColumns
from mlff_triton.kernels.convolution.gradient_blocks import splits_of
from mlff_triton.kernels.convolution.outer_sums import TILE, add_dot, precision_of_sums

_FIELDS = tl.constexpr(FIELDS)
_NODES = 64  # receivers at a time
_PLACES, _STAGES = 32, 3  # components of receivers at a time, pipeline stages
_CHANNELS = 16  # of the output, at a time


@triton.jit
def _load_column(columns_ptr, index):
    """Return the fields of a column of the sums that concern the output.

    They are its first weight, its first column of the output, the number of columns between
    channels, and the number of channels.
    """
    columns_ptr += index * _FIELDS
    return (
        tl.load(columns_ptr + 4),
        tl.load(columns_ptr + 5),
        tl.load(columns_ptr + 3),
        tl.load(columns_ptr + 6),
    )


@triton.jit
def _has_edges(row_ptr_ptr, node, M: tl.constexpr, n_nodes):
    """Return True if any of M receivers from ``node`` on has edges."""
    first = tl.load(row_ptr_ptr + node)
    return tl.load(row_ptr_ptr + tl.minimum(node + M, n_nodes)) > first


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
    PRECISION: tl.constexpr,
):
    """Write gradients of sums [n_nodes, n_coupled, n_inner].

    Grid: (tiles of M receivers x n_coupled columns,). Tiles without edges are skipped.
    """
    tile, index = tl.program_id(0) // n_coupled, tl.program_id(0) % n_coupled
    if _has_edges(row_ptr_ptr, tile * M, M, n_nodes):
        node = (tile * M + tl.arange(0, M)).to(tl.int64)[:, None]
        live = node < n_nodes
        weight, output, stride, count = _load_column(columns_ptr, index)
        out = out_ptr + (node * n_coupled + index) * n_inner
        for begin in range(0, n_inner, HIDDEN):
            k = begin + tl.arange(0, HIDDEN)
            total = tl.zeros((M, HIDDEN), out_ptr.dtype.element_ty)
            for start in range(0, count, CHANNELS):
                w = start + tl.arange(0, CHANNELS)
                inside = w < count
                column = output + w[None, :] * stride
                grad = tl.load(grad_ptr + node * n_out + column, live & inside[None, :], other=0.0)
                weights = tl.load(
                    weight_ptr + k.to(tl.int64)[None, :] * n_weights + (weight + w)[:, None],
                    (k < n_hidden)[None, :] & inside[:, None],
                    other=0.0,
                )  # [CHANNELS, HIDDEN]
                bias = tl.load(bias_ptr + weight + w, inside, other=0.0)
                weights = tl.where((k == n_hidden)[None, :], bias[:, None], weights)
                total = add_dot(total, grad, weights.to(total.dtype), PRECISION)
            tl.store(out + k[None, :], total, live)


@triton.jit
def _weight_gradient_kernel(
    grad_ptr,
    sums_ptr,
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
    PRECISION: tl.constexpr,
):
    """Write partial gradients of weight [splits, n_hidden, n_weights] and bias [splits, n_weights].

    Grid: (rows x blocks of HIDDEN x blocks of CHANNELS, splits of the receivers).
    """
    n_tiles = n_inner // HIDDEN
    index = tl.load(rows_ptr + tl.program_id(0) // (n_tiles * n_parts))
    weight, output, stride, count = _load_column(columns_ptr, index)
    start = tl.program_id(0) % n_parts * CHANNELS
    if start < count:
        k = tl.program_id(0) // n_parts % n_tiles * HIDDEN + tl.arange(0, HIDDEN)
        w = start + tl.arange(0, CHANNELS)
        inside = (w < count)[None, :]
        n_places = n_nodes * stride  # pairs of a receiver and a component
        total = tl.zeros((HIDDEN, CHANNELS), out_ptr.dtype.element_ty)
        for begin in range(tl.program_id(1) * M, n_places, tl.num_programs(1) * M):
            place = begin + tl.arange(0, M)
            live = place < n_places
            node, m = (place // stride).to(tl.int64), place % stride
            column = output + m[:, None] + w[None, :] * stride
            grad = tl.load(
                grad_ptr + node[:, None] * n_out + column, live[:, None] & inside, other=0.0
            )
            row = node * n_coupled + index + m
            sums = tl.load(
                sums_ptr + row[None, :] * n_inner + k[:, None], live[None, :], other=0.0
            )  # [HIDDEN, M]
            total = add_dot(total, sums, grad, PRECISION)
        split = tl.program_id(1).to(tl.int64)
        out = out_ptr + (split * n_hidden + k)[:, None] * n_weights + (weight + w)[None, :]
        tl.store(out, total, (k < n_hidden)[:, None] & inside)
        bias = bias_ptr + split * n_weights + (weight + w)[None, :] + tl.zeros_like(k)[:, None]
        tl.store(bias, total, (k == n_hidden)[:, None] & inside)


def _options(sums: Tensor) -> dict[str, object]:
    return {
        "CHANNELS": _CHANNELS,
        "HIDDEN": TILE,
        "PRECISION": precision_of_sums(sums.dtype),
        "num_warps": 4,
    }


def write_sums_gradient(
    grad: Tensor,
    weight: Tensor,
    bias: Tensor,
    row_ptr: Tensor,
    columns: CoupledColumns,
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
            M=_NODES,
            **_options(out),
            num_stages=1,
        )


def weight_gradients(
    grad: Tensor, sums: Tensor, weight: Tensor, columns: CoupledColumns
) -> tuple[Tensor, Tensor]:
    """Return partial gradients of weight [splits, H, weights] and bias [splits, weights]."""
    n_nodes, n_coupled, n_inner = sums.shape
    n_hidden, n_weights = weight.shape
    n_parts = triton.cdiv(columns.channels, _CHANNELS)
    programs = len(columns.rows) * n_parts * (n_inner // TILE)
    splits = splits_of(triton.cdiv(n_nodes, _PLACES), programs, grad)
    out = sums.new_empty(splits, n_hidden, n_weights)
    bias = sums.new_empty(splits, n_weights)
    with torch.cuda.device_of(out):
        _weight_gradient_kernel[(programs, splits)](
            grad,
            sums,
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
            n_parts,
            M=_PLACES,
            **_options(sums),
            num_stages=_STAGES,
        )
    return out, bias
