"""Projections of normalized rows, written in the layouts that later products read.

    out_k = scale_k mask (W_k norm(x) + b_k)      for all maps k

Rows are read once for all maps. They may be given in any order, such as columns of pairs, so that
nothing is transposed in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.common.blocks import block_side
from mlff_triton.kernels.common.checks import check_device, check_shape
from mlff_triton.kernels.common.dense import check_same
from mlff_triton.kernels.common.hardware import has_large_memory, register_limit
from mlff_triton.kernels.numerics.operands import takes_halves, weight_operands
from mlff_triton.kernels.numerics.product import split_along
from mlff_triton.kernels.numerics.rounding import loss_of
from mlff_triton.kernels.pairs.arguments import (
    FLOATS,
    check_norm,
    check_strided_rows,
    norm_arguments,
)
from mlff_triton.kernels.pairs.row_blocks import (
    chunk,
    load_chunks,
    locate,
    multiply_rows,
    normalize,
    offsets_of,
)
from mlff_triton.kernels.types.norm import Norm

_AXES = 6  # of results with halves


@triton.jit
def _write_projection(
    x,
    inside,
    factor,
    weight_ptr,
    bias_ptr,
    out_ptrs,
    unit_ptr,
    unit_offsets,
    low_stride,
    head_stride,
    dim_stride,
    unit_stride,
    HALVES: tl.constexpr,
    LOSS: tl.constexpr,
    CHANNELS: tl.constexpr,
    WIDTH: tl.constexpr,
    DIM: tl.constexpr,
    K: tl.constexpr,
):
    """Write one map of rows from `normalize`, times factors [M].

    The results of the rows begin at ``out_ptrs`` [M], and K of them are computed at a time. If
    ``unit_ptr`` is not None, the results of one head at a time are split into halves, and the units
    are stored there.
    """
    SPLIT: tl.constexpr = unit_ptr is not None
    STEP: tl.constexpr = DIM if SPLIT else K
    for first in range(0, WIDTH, STEP):
        y = multiply_rows(x, weight_ptr, first, WIDTH, CHANNELS, HALVES, LOSS, False, K)  # [M, K]
        column = first + tl.arange(0, K)
        if bias_ptr is not None:
            y += tl.load(bias_ptr + column, column < WIDTH, other=0.0).to(tl.float32)[None, :]
        head, dim = (column // DIM).to(tl.int64), (column % DIM).to(tl.int64)
        pointers = out_ptrs[:, None] + (head * head_stride + dim * dim_stride)[None, :]
        stored = inside[:, None] & (column < (first + STEP if SPLIT else WIDTH))[None, :]
        y *= factor[:, None]
        if SPLIT:
            high, low, unit = split_along(tl.where(stored, y, 0.0), 1)
            tl.store(pointers, high, stored)
            tl.store(pointers + low_stride.to(tl.int64), low, stored)
            units = unit_ptr + unit_offsets + first // DIM * unit_stride
            tl.store(units[:, None], unit, inside[:, None])
        else:
            tl.store(pointers, y.to(out_ptrs.dtype.element_ty), stored)


@triton.jit
def _projections_fwd_kernel(
    x_ptr,
    mask_ptr,
    norm_weight_ptr,
    norm_bias_ptr,
    weight_ptrs,
    bias_ptrs,
    out_ptrs,
    unit_ptrs,
    n_rows,
    shape,
    x_strides,
    out_strides,
    unit_strides,
    EPS: tl.constexpr,
    HALVES: tl.constexpr,
    LOSS: tl.constexpr,
    CHANNELS: tl.constexpr,
    WIDTHS: tl.constexpr,
    DIMS: tl.constexpr,
    SCALES: tl.constexpr,
    BLOCKS: tl.constexpr,
    C: tl.constexpr,
    CHUNK: tl.constexpr,
    M: tl.constexpr,
):
    """Write out_k [B, R, S, WIDTHS[k] / DIMS[k], DIMS[k]] for all maps k.

    If their units [B, R, S, WIDTHS[k] / DIMS[k]] are not None, results are halves [2, B, ...].
    Reads x [B, R, S, CHANNELS], mask [B, R, S] or None, weights [WIDTHS[k], CHANNELS] from
    `weight_operands`, and biases [WIDTHS[k]] or None. Strides are those of the six axes of results
    and of the four axes of units, of each map in turn. BLOCKS[k] outputs of a map are computed at a
    time. Grid: (blocks of M rows,).
    """
    place = locate(n_rows, shape, M)
    batch, row, token, inside = place
    offsets = offsets_of(place, x_strides)
    half: tl.constexpr = weight_ptrs[0].dtype.element_ty
    x = load_chunks(x_ptr, offsets, inside, CHANNELS, C, CHUNK)
    x = normalize(x, norm_weight_ptr, norm_bias_ptr, CHANNELS, half, EPS, HALVES)
    if mask_ptr is not None:
        index = tl.program_id(0) * M + tl.arange(0, M)
        kept = tl.load(mask_ptr + index, inside, other=0).to(tl.float32)
    else:
        kept = tl.full((M,), 1.0, tl.float32)
    for k in tl.static_range(len(WIDTHS)):
        out_offsets = batch * out_strides[6 * k + 1] + row * out_strides[6 * k + 2]
        out_offsets += token * out_strides[6 * k + 3]
        unit_offsets = batch * unit_strides[4 * k] + row * unit_strides[4 * k + 1]
        unit_offsets += token * unit_strides[4 * k + 2]
        _write_projection(
            x,
            inside,
            kept * SCALES[k],
            weight_ptrs[k],
            bias_ptrs[k],
            out_ptrs[k] + out_offsets,
            unit_ptrs[k],
            unit_offsets,
            out_strides[6 * k],
            out_strides[6 * k + 4],
            out_strides[6 * k + 5],
            unit_strides[4 * k + 3],
            HALVES,
            LOSS,
            CHANNELS,
            WIDTHS[k],
            DIMS[k],
            BLOCKS[k],
        )


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
        large, single = has_large_memory(weight), weight.element_size() > 2
        if block <= 128:
            stages = (2 if single else 3) if large else 1
            return cls(64, 32, 4, stages, None if single else 96)
        if single:
            return cls(32 if block <= 256 else 16, 32, 8, 1)
        return cls(64 if block <= 256 else 32, 64, 8, 1)


class Projection(NamedTuple):
    """One map of normalized rows, and the tensor for its results.

    Attributes
    ----------
    weight : [G D, C]
        Map of channels. All maps have the same dtype.
    out : [B, R, S, G, D] or [P, B, R, S, G, D]
        Results with any strides: of a floating dtype, or as high and low halves in float16, for
        which see `mlff_triton.kernels.numerics.split`.
    bias : [G D], optional
        Added to the products.
    scale : float
        Factor of the results.
    unit : float32 [B, R, S, G], optional
        Units of halves, with any strides.
    """

    weight: Tensor
    out: Tensor
    bias: Tensor | None = None
    scale: float = 1.0
    unit: Tensor | None = None


def project_rows(
    x: Tensor, norm: Norm, maps: Sequence[Projection], mask: Tensor | None = None
) -> None:
    """Write projections of normalized rows, without gradients.

    Parameters
    ----------
    x : [B, R, S, C]
        Rows with contiguous channels and any other strides; float32, or of the dtype of the
        weights. C is at most 512.
    norm : Norm
        Normalization of the rows.
    maps : sequence of Projection
        Maps with weights in float16, bfloat16 or float32, and their results. Products have this
        precision, and sums float32. Weights and normalized rows must not exceed 65504.
    mask : [B, R, S], optional
        Factor of the results; 1 by default.

    Raises
    ------
    InputError
        If shapes, dtypes or devices do not fit together.
    BackendError
        If the tensors are not on a GPU.

    Examples
    --------
    >>> x, weight = torch.randn(1, 7, 7, 16, device="cuda"), torch.ones(4, 16, device="cuda")
    >>> norm = torch.ones(16, device="cuda"), torch.zeros(16, device="cuda"), 1e-5
    >>> planes = torch.empty(1, 4, 7, 7, device="cuda")
    >>> project_rows(x, norm, [Projection(weight, planes.movedim(1, 3)[..., None])])
    """
    _check(x, norm, maps, mask)
    if not x.numel():
        return
    *_, rows, length, channels = x.shape
    n_rows, block = x[..., 0].numel(), block_side(channels)
    weight, outs = maps[0].weight, [m.out if m.out.dim() == _AXES else m.out[None] for m in maps]
    tile, halves = Tile.of(block, weight), takes_halves(weight)
    units = [m.unit for m in maps]
    with torch.cuda.device_of(x):
        _projections_fwd_kernel[(triton.cdiv(n_rows, tile.rows),)](
            x,
            None if mask is None else mask.contiguous(),
            *norm_arguments(norm),
            tuple(weight_operands(*(m.weight for m in maps), halves=halves)),
            tuple(None if m.bias is None else m.bias.contiguous() for m in maps),
            tuple(outs),
            tuple(units),
            n_rows,
            (rows, length),
            x.stride()[:-1],
            tuple(stride for out in outs for stride in out.stride()),
            tuple(stride for u in units for stride in ((0,) * 4 if u is None else u.stride())),
            EPS=norm[2],
            HALVES=halves,
            LOSS=loss_of(weight).halves,
            CHANNELS=channels,
            WIDTHS=tuple(len(m.weight) for m in maps),
            DIMS=tuple(m.out.shape[-1] for m in maps),
            SCALES=tuple(float(m.scale) for m in maps),
            BLOCKS=tuple(_columns(m, tile) for m in maps),
            C=block,
            CHUNK=chunk(block, halves),
            M=tile.rows,
            num_warps=tile.warps,
            num_stages=tile.stages,
            **register_limit(tile.registers),
        )


def _columns(projection: Projection, tile: Tile) -> int:
    """Return the number of results of a map computed at a time: if split, those of one head."""
    if projection.unit is not None:
        return block_side(projection.out.shape[-1])
    return min(block_side(len(projection.weight)), tile.columns)


def _check(x: Tensor, norm: Norm, maps: Sequence[Projection], mask: Tensor | None) -> None:
    """Check that the arguments of `project_rows` fit together."""
    check_same(FLOATS, {f"weight {k}": m.weight for k, m in enumerate(maps)})
    check_strided_rows(x, maps[0].weight)
    check_device(x, *(m.out for m in maps))
    check_norm("norm", norm, x)
    for k, (weight, out, bias, _, unit) in enumerate(maps):
        groups, dim = out.shape[-2:]
        check_shape(f"weight {k}", weight, (groups * dim, x.shape[3]))
        parts = len(out) if out.dim() == _AXES else 1
        check_shape(f"out {k}", out, (*out.shape[:-5], *x.shape[:3], groups, dim))
        if unit is None and parts != 1:
            raise InputError(f"out {k} has {parts} parts and no unit: give it one, or one part")
        if unit is not None:
            check_device(x, unit)
            check_shape(f"unit {k}", unit, (*x.shape[:3], groups))
            if (parts, out.dtype, unit.dtype) != (2, torch.float16, torch.float32):
                raise InputError(
                    f"out {k} has a unit: use two halves in float16, and a unit in float32"
                )
        if bias is not None:
            check_device(x, bias)
            check_shape(f"bias {k}", bias, (groups * dim,))
    if mask is not None:
        check_device(x, mask)
        check_shape("mask", mask, x.shape[:3])
