"""Gated output projections of attention, added to the rows that attend.

    x <- x + O (y sigmoid(G norm(x)))

The gates are computed from the rows, which are read anyway, and are not stored.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common.blocks import block_side
from mlff_triton.kernels.common.checks import check_shape
from mlff_triton.kernels.common.dense import check_same
from mlff_triton.kernels.common.hardware import has_large_memory, register_limit
from mlff_triton.kernels.numerics.operands import takes_halves, weight_operands
from mlff_triton.kernels.numerics.product import untruncated
from mlff_triton.kernels.numerics.rounding import loss_of
from mlff_triton.kernels.pairs.arguments import (
    FLOATS,
    check_norm,
    check_strided_rows,
    norm_arguments,
)
from mlff_triton.kernels.pairs.row_blocks import (
    add_product,
    add_to_rows,
    chunk,
    gated,
    load_chunks,
    locate,
    multiply_rows,
    normalize,
    offsets_of,
)
from mlff_triton.kernels.types.norm import Norm


@triton.jit
def _add_columns(
    acc,
    x,
    y,
    weights,
    first,
    EXACT: tl.constexpr,
    HALVES: tl.constexpr,
    LOSS: tl.constexpr,
    CHANNELS: tl.constexpr,
    WIDTH: tl.constexpr,
    DIM: tl.constexpr,
    K: tl.constexpr,
):
    """Add the products of the K columns of attention outputs from ``first`` on to ``acc`` [M, C].

    ``y`` has pointers to the outputs of each row, a mask of rows that exist, and the stride of
    heads.
    """
    pointers, inside, stride = y
    gate = multiply_rows(x, weights[0], first, WIDTH, CHANNELS, HALVES, LOSS, False, K)  # [M, K]
    column = first + tl.arange(0, K)
    columns = (column // DIM).to(tl.int64) * stride + column % DIM
    loaded = inside[:, None] & (column < WIDTH)[None, :]
    outputs = tl.load(pointers[:, None] + columns[None, :], loaded, other=0.0).to(tl.float32)
    outputs = gated(outputs, gate, EXACT)
    return add_product(acc, outputs, weights[1], first, CHANNELS, WIDTH, HALVES)


@triton.jit
def _gated_update_fwd_kernel(
    x_ptr,
    y_ptr,
    norm_weight_ptr,
    norm_bias_ptr,
    gate_ptr,
    out_ptr,
    n_rows,
    shape,
    x_strides,
    y_strides,
    EPS: tl.constexpr,
    HALVES: tl.constexpr,
    LOSS: tl.constexpr,
    CHANNELS: tl.constexpr,
    WIDTH: tl.constexpr,
    DIM: tl.constexpr,
    C: tl.constexpr,
    CHUNK: tl.constexpr,
    M: tl.constexpr,
    K: tl.constexpr,
):
    """Add updates to rows x [B, R, S, CHANNELS] in place.

    Reads y [B, R, S, WIDTH / DIM, DIM] and weights gate [WIDTH, CHANNELS] and out
    [CHANNELS, WIDTH] from `weight_operands`. Grid: (blocks of M rows,).
    """
    place = locate(n_rows, shape, M)
    offsets, inside = offsets_of(place, x_strides), place[3]
    half: tl.constexpr = gate_ptr.dtype.element_ty
    EXACT: tl.constexpr = HALVES or half == tl.float32
    x = load_chunks(x_ptr, offsets, inside, CHANNELS, C, CHUNK)
    x = normalize(x, norm_weight_ptr, norm_bias_ptr, CHANNELS, half, EPS, HALVES)
    acc = tl.zeros((M, C), tl.float32)
    y = y_ptr + offsets_of(place, y_strides), inside, y_strides[3]
    weights = gate_ptr, out_ptr
    START: tl.constexpr = 0 if EXACT else K
    if START:  # Outside of the loop, a first product leaves x in registers for the others.
        acc = _add_columns(acc, x, y, weights, 0, EXACT, HALVES, LOSS, CHANNELS, WIDTH, DIM, K)
    for first in range(START, WIDTH, K):
        acc = _add_columns(acc, x, y, weights, first, EXACT, HALVES, LOSS, CHANNELS, WIDTH, DIM, K)
    if EXACT:
        acc = untruncated(acc, K, LOSS)
    add_to_rows(acc, x_ptr, offsets, inside, CHANNELS)


class Tile(NamedTuple):
    """Block sizes and options of a launch."""

    rows: int
    columns: int
    warps: int
    stages: int
    registers: int | None = None

    @classmethod
    def of(cls, block: int, weight: Tensor) -> Tile:
        """Return block sizes for a block of channels, in the dtype and on the GPU of a weight."""
        single = weight.element_size() > 2
        if block <= 128 and has_large_memory(weight):
            return cls(64, 64 if single else 128, 4, 1)
        if block <= 128:
            return cls(64, 32, 4, 1, 168)
        if single:
            return cls(32 if block <= 256 else 16, 16, 8, 1)
        return cls(64 if block <= 256 else 32, 32, 8, 1)


def gated_update_(x: Tensor, y: Tensor, norm: Norm, gate: Tensor, out: Tensor) -> Tensor:
    """Add gated projections of attention outputs to rows in place, without gradients.

    Parameters
    ----------
    x : [B, R, S, C]
        Rows with contiguous channels, and any other strides; float32, or of the dtype of the
        weights. C is at most 512.
    y : [B, R, S, H, D]
        Attention outputs, of the dtype of the weights, with contiguous channels of a head.
    norm : Norm
        Normalization of the rows, before the map to gates.
    gate, out : [H D, C] and [C, H D]
        Map of normalized rows to gates, and of gated outputs to updates; float16, bfloat16 or
        float32. Products have this precision, and sums float32.

    Returns
    -------
    [B, R, S, C]
        ``x``.

    Raises
    ------
    InputError
        If shapes, dtypes or devices do not fit together.
    BackendError
        If the tensors are not on a GPU.

    Examples
    --------
    >>> x, y = torch.randn(1, 7, 7, 16, device="cuda"), torch.randn(1, 7, 7, 2, 8, device="cuda")
    >>> norm = torch.ones(16, device="cuda"), torch.zeros(16, device="cuda"), 1e-5
    >>> gated_update_(x, y, norm, *torch.randn(2, 16, 16, device="cuda")).shape
    torch.Size([1, 7, 7, 16])
    """
    _check(x, y, norm, gate, out)
    if not x.numel():
        return x
    *_, rows, length, channels = x.shape
    n_rows, block = x[..., 0].numel(), block_side(channels)
    y = y if y.stride(-1) == 1 else y.contiguous()
    tile, halves = Tile.of(block, gate), takes_halves(gate)
    with torch.cuda.device_of(x):
        _gated_update_fwd_kernel[(triton.cdiv(n_rows, tile.rows),)](
            x,
            y,
            *norm_arguments(norm),
            *weight_operands(gate, out, halves=halves),
            n_rows,
            (rows, length),
            x.stride()[:-1],
            y.stride()[:-1],
            EPS=norm[2],
            HALVES=halves,
            LOSS=loss_of(gate).halves,
            CHANNELS=channels,
            WIDTH=len(gate),
            DIM=y.shape[-1],
            C=block,
            CHUNK=chunk(block, halves),
            M=tile.rows,
            K=min(tile.columns, block_side(len(gate))),
            num_warps=tile.warps,
            num_stages=tile.stages,
            **register_limit(tile.registers),
        )
    return x


def _check(x: Tensor, y: Tensor, norm: Norm, gate: Tensor, out: Tensor) -> None:
    """Check that the arguments of `gated_update_` fit together."""
    check_same(FLOATS, {"gate": gate, "out": out, "y": y})
    check_strided_rows(x, gate)
    check_norm("norm", norm, x)
    check_shape("y", y, (*x.shape[:3], "H", "D"))
    channels, width = x.shape[3], y.shape[3] * y.shape[4]
    check_shape("gate", gate, (width, channels))
    check_shape("out", out, (channels, width))
